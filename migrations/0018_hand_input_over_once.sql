-- A turn's input went to the database twice in one request, also as the parts of its message: with megabytes of media,
-- reading it took twice as long. Now the message has its id alone; the version before sends its other members still.
--
-- Accepts a turn, queues it, or says why not: one of the contract's Opened, with the lease's `epoch` for
-- the fence, the message's {after, created_at}, and of the turn only what the request has not. Null: no such
-- session to see.
-- `environment` in the request: it is to be opened only where a credential is surely there; else the answer is
-- {kind: 'unsure', ground}, and nothing is written.
create or replace function open_turn(visible_to text, request jsonb) returns json
language plpgsql as $$
declare
  given jsonb := request -> 'turn';
  message_id text := request #>> '{message,id}';
  place session;
  known turn;
  at timestamptz := clock_timestamp();
  made json;
  wanted text;
  active_id text;
  tools_revision bigint;
  newer_registry json;
  bindings json;
  named json;
  preferred json;
  interrupted text;
  urgent boolean := request ->> 'on_busy' = 'interrupt';
  seen bigint := 0;
  earlier json;
  input json;
begin
  select * into place from session
   where id = given ->> 'session_id' and (visible_to is null or owner = visible_to)
     for no key update;
  if not found then
    return null;
  end if;

  if given ->> 'idempotency_key' is not null then
    select * into known from turn
     where session_id = place.id
       and idempotency_key = given ->> 'idempotency_key'
       and created_at > clock_timestamp() - interval '24 hours'
     order by created_at desc limit 1;
    if found then
      if known.body_hash <> given ->> 'body_hash' then
        return json_build_object('kind', 'mismatch');
      end if;
      return json_build_object('kind', 'replayed', 'turn', turn_json(known));
    end if;
  end if;

  wanted := coalesce(given ->> 'provider', place.provider);
  -- Apart from the lock: a statement that waits for one goes on with what was there before. What few sessions
  -- have is left to functions, so that the others do not pay for setting up how it is read.
  select (
           select id from turn
            where session_id = place.id and state in ('queued', 'running', 'awaiting_input')
            order by state = 'queued', created_at limit 1
         ),
         r.revision,
         case when r.revision <> coalesce((request ->> 'known_revision')::bigint, -1) then registry_json(r) end,
         case when exists (select from binding where session_id = place.id) then bindings_json(place.id)
              else '[]' end,
         case when place.credential_id is not null then named_credential(place) end,
         case when exists (select from credential where owner = place.owner and provider = wanted)
              then preferred_credential(place.owner, wanted) end
    into active_id, tools_revision, newer_registry, bindings, named, preferred
    from (select place.id) as this (id) left join registry r on r.session_id = this.id;
  if request ? 'environment'
     and not has_credential(place, wanted, named, preferred, request -> 'environment') then
    return json_build_object(
      'kind', 'unsure', 'ground', ground_json(place, tools_revision, active_id, named, preferred)
    );
  end if;

  if active_id is not null then
    if request ->> 'on_busy' = 'reject' then
      return json_build_object('kind', 'busy', 'active_turn_id', active_id);
    end if;
    if (select count(*) from turn where session_id = place.id and state = 'queued' and is_urgent = urgent)
        >= (request ->> 'queue_limit')::integer then
      return json_build_object('kind', 'queue_full');
    end if;
  end if;

  if (request #>> '{known_history,rewrites}')::bigint = place.rewrites then
    seen := (request #>> '{known_history,seq}')::bigint;
  end if;
  if active_id is null and place.last_seq > seen then
    earlier := history(place.id, seen);
  end if;
  input := given ->> 'input';
  -- A queued turn's message comes when it starts, and the session is left alone until then.
  with opened as (
    insert into turn (id, session_id, owner, state, input, context, max_steps, provider, model,
                      idempotency_key, body_hash, base_seq, is_urgent, created_at, started_at)
    values (given ->> 'id', place.id, place.owner,
            case when active_id is null then 'running' else 'queued' end::turn_state,
            input, (given ->> 'context')::json, (given ->> 'max_steps')::integer,
            given ->> 'provider', given ->> 'model', given ->> 'idempotency_key', given ->> 'body_hash',
            place.last_seq, urgent, at, case when active_id is null then at end)
  ), moved as (
    update session
       set last_seq = last_seq + 1, updated_at = at,
           lease_owner = request #>> '{lease,owner}', lease_epoch = lease_epoch + 1,
           lease_until = seconds_from_now((request #>> '{lease,seconds}')::float8)
     where id = place.id and active_id is null
  )
  insert into message (id, session_id, turn_id, seq, calls, results, created_at, body)
  select message_id, place.id, given ->> 'id', place.last_seq + 1, '{}', '{}', at,
         message_body(message_id, place.id, given ->> 'id', place.last_seq + 1, 'user', input, false, at)
   where active_id is null;
  made := json_build_object('owner', place.owner, 'base_seq', place.last_seq, 'created_at', rfc3339(at));
  if active_id is not null then
    if urgent then
      update turn set cancel_requested = true where id = active_id and state <> 'queued'
      returning id into interrupted;
    end if;
    return json_build_object('kind', 'queued', 'turn', made, 'interrupted', interrupted);
  end if;

  return json_build_object(
    'kind', 'running',
    'turn', made,
    'message', json_build_object('after', place.last_seq, 'created_at', rfc3339(at)),
    'epoch', place.lease_epoch + 1,
    'start', json_build_object(
      'ground', ground_json(place, tools_revision, active_id, named, preferred),
      'rewrites', place.rewrites,
      'earlier', earlier,
      'registry', newer_registry,
      'bindings', bindings
    )
  );
end
$$;
