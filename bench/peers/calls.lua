-- What wrk sends, one request after the other on each of its connections, and what it counts.
--
-- Arguments: the head of a request up to the value of Content-Length, the number of the first request, its body
-- with %d where the number goes, and for calls that ask, the body of the retry with %d and %s for the answer.
-- A retry needs no particular connection: whichever is free next sends it, so that as many are in flight as ever.

local head, number, first, again
local retries, next_retry, last_retry = {}, 1, 0
asked, finished, fault = 0, 0, ""

local function post(body)
  return head .. #body .. "\r\n\r\n" .. body
end

function init(args)
  head, number, first, again = args[1], tonumber(args[2]), args[3], args[4]
  if again == nil then
    response = nil -- else wrk would spend its time on making headers and bodies for it
  end
end

function request()
  number = number + 1
  if next_retry > last_retry then
    return post(string.format(first, number))
  end
  local answer = retries[next_retry]
  retries[next_retry] = nil
  next_retry = next_retry + 1
  return post(string.format(again, number, answer))
end

function response(status, headers, body)
  if body:find('"error"', 1, true) or body:find('"isError":true', 1, true) then
    fault = body
  end
  local state = body:match('"requestState":%s*"([^"]+)"')
  local key = body:match('"inputRequests":%s*{%s*"([^"]+)"')
  if key == nil and state == nil then
    finished = finished + 1
    return
  end
  local members = {}
  if key ~= nil then
    asked = asked + 1
    members[1] = '"inputResponses":{"' .. key .. '":{"action":"accept","content":{"confirmed":true}}}'
  end
  if state ~= nil then
    members[#members + 1] = '"requestState":"' .. state .. '"'
  end
  last_retry = last_retry + 1
  retries[last_retry] = table.concat(members, ",")
end

local the_thread

function setup(thread)
  the_thread = thread
end

function done(summary)
  local errors = summary.errors
  local lost = errors.connect + errors.read + errors.write + errors.timeout
  io.stderr:write(string.format("%d %d %d %d %d %d\n%s", summary.duration, summary.requests, errors.status, lost,
    the_thread:get("asked"), the_thread:get("finished"), the_thread:get("fault")))
end
