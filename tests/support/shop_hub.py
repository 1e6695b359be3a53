"""A hub of the shop at `SHOP_URL`, which asks before it changes something: `shop_hub:hub`."""

import os

from midcall import Hub
from shop_api import DOCUMENT

hub = Hub("shopping").from_openapi(
    DOCUMENT, namespace="shop", base_url=os.environ["SHOP_URL"], headers={"Authorization": "Bearer s3cret"}, confirm="unsafe"
)  # fmt: skip
