-- Baton's schema. Rules that hold for every table and function here:
--
--  * What a person, a model or a tool wrote is a document: type json, not jsonb. It comes back exactly as
--    it was given: order of keys (prompt caches and signed reasoning hang on the bytes), NUL, lone
--    surrogates. Nothing here looks inside a document.
--  * A function's jsonb argument carries documents as text inside of it, for the same reason.
--  * Whoever changes a session's turns or messages locks the session's row first, then the turn's.
--  * What every turn writes (turn, step, message, execution) has no foreign keys: whoever writes it has the
--    session locked and so knows that it is there, and delete_session takes it along. The registry has none
--    either: each foreign key to the session is one more trigger that every turn's writes to it ask.
--  * States are enumerations: a check would be parsed anew by every statement that writes.
--  * The functions named *_json are the one place where a row takes the shape that the code knows.
--  * Functions are in plpgsql, which keeps their plans with the connection; the few in sql are short enough
--    to be inlined into their caller's plan. Each statement inside costs its own setting up: those of every
--    turn read, and write, several tables in one.
--  * Times are the server's clock, never a client's, except where a client reports a past event.

-- Ids sort by bytes in every locale: they begin with the time they were made.
create domain identifier as text collate "C";

create type turn_state as enum ('queued', 'running', 'awaiting_input', 'completed', 'failed', 'cancelled');
create type execution_state as enum ('awaiting_approval', 'started', 'settled');
create type approval_decision as enum ('approve', 'deny', 'expired');

create type token_usage as (
  input_tokens bigint,
  output_tokens bigint,
  reasoning_tokens bigint,
  cached_tokens bigint
);

create function add_usage(a token_usage, b token_usage) returns token_usage
language sql immutable as $$
  select row(
    (a).input_tokens + (b).input_tokens,
    (a).output_tokens + (b).output_tokens,
    (a).reasoning_tokens + (b).reasoning_tokens,
    (a).cached_tokens + (b).cached_tokens
  )::token_usage
$$;

create function minus_usage(a token_usage, b token_usage) returns token_usage
language sql immutable as $$
  select row(
    (a).input_tokens - (b).input_tokens,
    (a).output_tokens - (b).output_tokens,
    (a).reasoning_tokens - (b).reasoning_tokens,
    (a).cached_tokens - (b).cached_tokens
  )::token_usage
$$;

-- RFC 3339 in UTC, as every time leaves the store.
create function rfc3339(at timestamptz) returns text
language sql stable as $$
  select to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
$$;

create function seconds_from_now(seconds double precision) returns timestamptz
language sql volatile as $$
  select clock_timestamp() + make_interval(secs => seconds)
$$;

-- ---------------------------------------------------------------- sessions and messages

create table session (
  id identifier primary key,
  owner text not null,
  provider text not null,
  model text not null,
  credential_id text,
  instructions text not null,
  settings json not null,
  title text,
  metadata json not null,
  -- The highest seq ever given to a message: a deletion leaves a gap
  last_seq bigint not null default 0,
  -- How often messages were replaced or deleted: what somebody keeps of a history holds while this stays
  rewrites bigint not null default 0,
  usage token_usage not null default (0, 0, 0, 0),
  -- Who may write for the session. The epoch grows with each taking, so a former owner's writes are known.
  -- No owner: given back. A lapsed lease is still its owner's until somebody takes it.
  lease_owner text,
  lease_epoch bigint not null default 0,
  lease_until timestamptz,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp()
);
create index session_owner on session (owner, id);

create table message (
  id identifier primary key,
  session_id identifier not null,
  turn_id identifier,
  seq bigint not null,
  -- Ids of the tool calls made and answered here: parts may be sealed
  calls text[] not null,
  results text[] not null,
  created_at timestamptz not null,
  -- The message as it is read, made once: a long history is read far more often than it is written
  body json not null
);
create unique index message_seq on message (session_id, seq);

create function message_body(
  id text, session_id text, turn_id text, seq bigint, role text, parts json, incomplete boolean,
  created_at timestamptz
) returns json
language sql stable as $$
  select case when incomplete then json_build_object(
    'id', id, 'session_id', session_id, 'turn_id', turn_id, 'seq', seq, 'role', role, 'parts', parts,
    'incomplete', true, 'created_at', rfc3339(created_at)
  ) else json_build_object(
    'id', id, 'session_id', session_id, 'turn_id', turn_id, 'seq', seq, 'role', role, 'parts', parts,
    'created_at', rfc3339(created_at)
  ) end
$$;

-- A session's messages after a seq, in order.
create function history(the_session text, after_seq bigint) returns json
language plpgsql stable as $$
begin
  return (
    select coalesce(json_agg(body), '[]')
      from (select body from message where session_id = the_session and seq > after_seq order by seq) m
  );
end
$$;

-- ---------------------------------------------------------------- turns

create table turn (
  id identifier primary key,
  session_id identifier not null,
  owner text not null,
  state turn_state not null,
  input json not null,
  context json not null,
  max_steps integer not null,
  provider text,
  model text,
  idempotency_key text,
  body_hash text not null,
  attempt integer not null default 1,
  restarts integer not null default 0,
  recoveries integer not null default 0,
  usage token_usage not null default (0, 0, 0, 0),
  finish_reason text,
  error json,
  base_seq bigint not null,
  cancel_requested boolean not null default false,
  -- Came in by an interrupt: runs before those that merely wait
  is_urgent boolean not null default false,
  -- Events of its last commit, until they are known to be in the stream
  announce json,
  created_at timestamptz not null default clock_timestamp(),
  started_at timestamptz,
  ended_at timestamptz
);
create index turn_session on turn (session_id, id);
create unique index turn_one_active on turn (session_id) where state in ('running', 'awaiting_input');
create index turn_unended on turn (session_id, created_at)
  where state in ('queued', 'running', 'awaiting_input');
create index turn_key on turn (session_id, idempotency_key) where idempotency_key is not null;
create index turn_unannounced on turn (id) where announce is not null and state <> 'running';

create table step (
  turn_id identifier not null,
  index integer not null,
  attempt integer not null,
  provider text not null,
  model text not null,
  tools_revision bigint not null,
  tool_count integer not null,
  finish_reason text,
  usage token_usage not null,
  started_at timestamptz not null,
  ended_at timestamptz,
  discarded boolean not null,
  primary key (turn_id, index, attempt)
);

create function step_json(s step) returns json
language sql stable as $$
  select json_build_object(
    'index', s.index, 'attempt', s.attempt, 'provider', s.provider, 'model', s.model,
    'tools_revision', s.tools_revision, 'tool_count', s.tool_count, 'finish_reason', s.finish_reason,
    'usage', s.usage, 'started_at', rfc3339(s.started_at), 'ended_at', rfc3339(s.ended_at),
    'discarded', s.discarded
  )
$$;

create function turn_json(t turn) returns json
language plpgsql stable as $$
begin
  return json_build_object(
    'id', t.id, 'session_id', t.session_id, 'owner', t.owner, 'state', t.state, 'input', t.input,
    'context', t.context, 'max_steps', t.max_steps, 'provider', t.provider, 'model', t.model,
    'idempotency_key', t.idempotency_key, 'attempt', t.attempt, 'restarts', t.restarts,
    'recoveries', t.recoveries, 'usage', t.usage, 'finish_reason', t.finish_reason, 'error', t.error,
    'base_seq', t.base_seq, 'cancel_requested', t.cancel_requested, 'created_at', rfc3339(t.created_at),
    'started_at', rfc3339(t.started_at), 'ended_at', rfc3339(t.ended_at),
    'steps', (
      select coalesce(json_agg(step_json(s) order by s.index, s.attempt), '[]')
        from step s where s.turn_id = t.id
    )
  );
end
$$;

-- ---------------------------------------------------------------- connectors and the tool registry

create table connector (
  id identifier primary key,
  owner text not null,
  name text not null,
  origin text not null check (origin in ('api', 'config')),
  transport text not null,
  url text,
  command text,
  args json not null,
  auth json not null,
  mode text not null,
  default_tool_config json,
  allow_tools json not null,
  deny_tools json not null,
  require_approval text not null,
  trust_annotations boolean not null,
  pin text not null,
  secret bytea,
  config_revision bigint not null default 1,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp()
);
create unique index connector_name on connector (owner, name) where origin = 'api';
create unique index connector_config_name on connector (name) where origin = 'config';

create table binding (
  session_id identifier not null references session on delete cascade,
  connector_id identifier not null references connector on delete cascade,
  alias text,
  place bigint generated always as identity,
  primary key (session_id, connector_id)
);
create index binding_connector on binding (connector_id);

create table registry (
  session_id identifier primary key,
  revision bigint not null default 0,
  tools json not null default '[]',
  -- What the last change was
  delta json,
  updated_at timestamptz not null default clock_timestamp()
);

-- The last known tools of a connection, so that a cold start has some.
create table tool_list (
  key text primary key,
  connector_id identifier not null references connector on delete cascade,
  list json not null,
  updated_at timestamptz not null default clock_timestamp()
);
create index tool_list_connector on tool_list (connector_id);

create table tool_pin (
  connector_id identifier not null references connector on delete cascade,
  tool text collate "C" not null,
  hash text not null,
  definition json not null,
  accepted_by text not null,
  accepted_at timestamptz not null default clock_timestamp(),
  primary key (connector_id, tool)
);

create function connector_json(c connector) returns json
language sql stable as $$
  select json_build_object(
    'id', c.id, 'owner', c.owner, 'name', c.name, 'origin', c.origin, 'transport', c.transport,
    'url', c.url, 'command', c.command, 'args', c.args, 'auth', c.auth, 'mode', c.mode,
    'default_tool_config', c.default_tool_config, 'allow_tools', c.allow_tools,
    'deny_tools', c.deny_tools, 'require_approval', c.require_approval,
    'trust_annotations', c.trust_annotations, 'pin', c.pin, 'secret', encode(c.secret, 'base64'),
    'config_revision', c.config_revision, 'created_at', rfc3339(c.created_at),
    'updated_at', rfc3339(c.updated_at)
  )
$$;

create function registry_json(r registry) returns json
language sql stable as $$
  select json_build_object(
    'session_id', r.session_id, 'revision', r.revision, 'updated_at', rfc3339(r.updated_at),
    'tools', r.tools
  )
$$;

-- Null where it still has the revision that the caller knows.
create function newer_registry(the_session text, known_revision bigint) returns json
language plpgsql stable as $$
begin
  return (
    select registry_json(r) from registry r where r.session_id = the_session and r.revision <> known_revision
  );
end
$$;

-- [{connector, alias}] in the order of binding.
create function bindings_json(the_session text) returns json
language plpgsql stable as $$
begin
  return (
    select coalesce(
             json_agg(json_build_object('connector', connector_json(c), 'alias', b.alias) order by b.place),
             '[]'
           )
      from binding b join connector c on c.id = b.connector_id
     where b.session_id = the_session
  );
end
$$;

-- The one that runs or waits, else the oldest queued one.
create function active_turn(the_session text) returns text
language plpgsql stable as $$
begin
  return (
    select id from turn
     where session_id = the_session and state in ('queued', 'running', 'awaiting_input')
     order by state = 'queued', created_at limit 1
  );
end
$$;

create function session_json(s session, tools_revision bigint, active_turn_id text) returns json
language sql stable as $$
  select json_build_object(
    'id', s.id, 'owner', s.owner, 'provider', s.provider, 'model', s.model,
    'credential_id', s.credential_id, 'instructions', s.instructions, 'settings', s.settings,
    'title', s.title, 'metadata', s.metadata, 'tools_revision', tools_revision,
    'active_turn_id', active_turn_id, 'usage', s.usage,
    'created_at', rfc3339(s.created_at), 'updated_at', rfc3339(s.updated_at)
  )
$$;

create function session_json(s session) returns json
language plpgsql stable as $$
begin
  return session_json(s, (select r.revision from registry r where r.session_id = s.id), active_turn(s.id));
end
$$;

-- ---------------------------------------------------------------- the ledger

create table execution (
  id identifier primary key,
  session_id identifier not null,
  turn_id identifier not null,
  owner text not null,
  step integer not null,
  call_id text not null,
  tool text collate "C" not null,
  connector text,
  tools_revision bigint not null,
  arguments json not null,
  state execution_state not null,
  repeatable boolean not null,
  outcome text,
  is_error boolean,
  error text,
  duration_ms double precision,
  bytes bigint,
  -- A document: a tool may answer with characters that text cannot hold
  output json,
  structured boolean,
  -- The part for the conversation, until its message is committed
  result json,
  expires_at timestamptz,
  decision approval_decision,
  decided_by text,
  reason text,
  sealed_arguments bytea,
  created_at timestamptz not null default clock_timestamp(),
  started_at timestamptz,
  ended_at timestamptz
);
create index execution_session on execution (session_id, id);
create index execution_owner on execution (owner, id);
create index execution_turn on execution (turn_id, id);
create index execution_tool on execution (tool, id);
create index execution_awaiting on execution (expires_at) where state = 'awaiting_approval';
create index execution_ended on execution (ended_at) where state = 'settled';

create function execution_json(e execution) returns json
language sql stable as $$
  select json_build_object(
    'id', e.id, 'session_id', e.session_id, 'turn_id', e.turn_id, 'step', e.step, 'call_id', e.call_id,
    'tool', e.tool, 'connector', e.connector, 'tools_revision', e.tools_revision,
    'arguments', e.arguments, 'state', e.state, 'repeatable', e.repeatable, 'outcome', e.outcome,
    'is_error', e.is_error, 'error', e.error, 'started_at', rfc3339(e.started_at),
    'ended_at', rfc3339(e.ended_at), 'duration_ms', e.duration_ms, 'bytes', e.bytes,
    'approved_by', case when e.decision = 'approve' then e.decided_by end,
    'result', e.result, 'expires_at', rfc3339(e.expires_at),
    'approval', case when e.decision is not null then json_build_object(
      'decision', e.decision, 'reason', e.reason,
      'sealed_arguments', encode(e.sealed_arguments, 'base64')
    ) end
  )
$$;

-- ---------------------------------------------------------------- credentials, keys, audit, settings

create table credential (
  id identifier primary key,
  owner text not null,
  provider text not null,
  kind text not null check (kind in ('api_key', 'oauth')),
  name text,
  state text not null check (state in ('active', 'needs_reauth', 'disabled')),
  reason text,
  is_default boolean not null,
  hint text not null,
  facts json not null,
  expires_at timestamptz,
  secret bytea not null,
  version bigint not null default 1,
  -- Who refreshes it now, and until when nobody else may
  claimed_by text,
  claimed_until timestamptz,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp()
);
create index credential_owner on credential (owner, id);
create unique index credential_one_default on credential (owner, provider) where is_default;

create function credential_json(c credential) returns json
language sql stable as $$
  select json_build_object(
    'id', c.id, 'owner', c.owner, 'provider', c.provider, 'kind', c.kind, 'name', c.name,
    'state', c.state, 'reason', c.reason, 'is_default', c.is_default, 'hint', c.hint, 'facts', c.facts,
    'expires_at', rfc3339(c.expires_at), 'secret', encode(c.secret, 'base64'), 'version', c.version,
    'created_at', rfc3339(c.created_at), 'updated_at', rfc3339(c.updated_at)
  )
$$;

create table api_key (
  id identifier primary key,
  hash text not null unique,
  owner text not null,
  name text,
  scopes json not null,
  hint text not null,
  expires_at timestamptz,
  last_used_at timestamptz,
  revoked_at timestamptz,
  created_at timestamptz not null default clock_timestamp()
);
create index api_key_owner on api_key (owner, id);

create function api_key_json(k api_key) returns json
language sql stable as $$
  select json_build_object(
    'id', k.id, 'owner', k.owner, 'name', k.name, 'scopes', k.scopes, 'hint', k.hint,
    'expires_at', rfc3339(k.expires_at), 'last_used_at', rfc3339(k.last_used_at),
    'revoked_at', rfc3339(k.revoked_at), 'created_at', rfc3339(k.created_at)
  )
$$;

create table audit (
  id bigint generated always as identity primary key,
  at timestamptz not null default clock_timestamp(),
  owner text not null,
  act text not null,
  subject text not null,
  details json not null
);

create table setting (
  name text primary key,
  value text not null
);

-- ---------------------------------------------------------------- verbs: small steps

create function is_busy(the_session text) returns boolean
language plpgsql as $$
begin
  return exists (
    select from turn
     where session_id = the_session and state in ('queued', 'running', 'awaiting_input')
  );
end
$$;

create function has_queued(the_session text) returns boolean
language plpgsql as $$
begin
  return exists (select from turn where session_id = the_session and state = 'queued');
end
$$;

-- The owner's default for the provider, else the only active one. Where none is active, the newest login
-- that needs one anew comes, so that a refusal can say so.
create function preferred_credential(the_owner text, the_provider text) returns json
language plpgsql stable as $$
begin
  -- Most providers have the environment's key and no row here.
  if not exists (select from credential where owner = the_owner and provider = the_provider) then
    return null;
  end if;
  return (
    with mine as (
      select c.*, count(*) filter (where state = 'active') over () as active
        from credential c where owner = the_owner and provider = the_provider
    )
    select credential_json(c) from credential c join mine m on m.id = c.id
     where m.is_default or (m.state = 'active' and m.active = 1)
        or (m.state = 'needs_reauth' and m.active = 0)
     order by m.is_default desc, m.id desc limit 1
  );
end
$$;

-- What a turn stands on: {session, named, preferred}, the last two the session's own credential and the one
-- that stands in for it.
create function ground_json(
  place session, tools_revision bigint, active_turn_id text, named json, preferred json
) returns json
language sql stable as $$
  select json_build_object(
    'session', session_json(place, tools_revision, active_turn_id), 'named', named, 'preferred', preferred
  )
$$;

-- The session's own credential, where it names one.
create function named_credential(place session) returns json
language plpgsql stable as $$
begin
  return (
    select credential_json(c) from credential c where c.id = place.credential_id and c.owner = place.owner
  );
end
$$;

create function turn_ground(visible_to text, the_session text, the_provider text) returns json
language plpgsql stable as $$
declare
  place session;
begin
  select * into place from session
   where id = the_session and (visible_to is null or owner = visible_to);
  if not found then
    return null;
  end if;
  return ground_json(
    place, (select r.revision from registry r where r.session_id = place.id), active_turn(place.id),
    named_credential(place), preferred_credential(place.owner, coalesce(the_provider, place.provider))
  );
end
$$;

-- Whether an active credential is surely there: the session's own where it names one for the provider, else
-- the one that stands in, else the environment's, whose providers are given.
create function has_credential(place session, wanted text, named json, preferred json, environment jsonb)
returns boolean
language sql immutable as $$
  select case
    when place.credential_id is not null and wanted = place.provider
      then coalesce(named ->> 'provider' = wanted and named ->> 'state' = 'active', false)
    when preferred is null then environment ? wanted
    else preferred ->> 'state' = 'active'
  end
$$;

-- Locks the session if it may be seen; whether it is there.
create function lock_session(visible_to text, the_session text) returns boolean
language plpgsql as $$
begin
  perform from session
    where id = the_session and (visible_to is null or owner = visible_to)
      for no key update;
  return found;
end
$$;

-- Whether a fence still holds; the session stays locked until the transaction ends.
create function lock_fence(fence jsonb) returns boolean
language plpgsql as $$
begin
  perform from session
    where id = fence ->> 'session_id'
      and lease_owner = fence ->> 'owner'
      and lease_epoch = (fence ->> 'epoch')::bigint
      for no key update;
  return found;
end
$$;

-- The caller has the session locked and knows that nobody else may write for it.
create function take_lease(the_session text, new_owner text, seconds double precision) returns bigint
language plpgsql as $$
declare
  taken bigint;
begin
  update session
     set lease_owner = new_owner, lease_epoch = lease_epoch + 1, lease_until = seconds_from_now(seconds)
   where id = the_session
  returning lease_epoch into taken;
  return taken;
end
$$;

-- Writes messages in order after a seq; the caller has counted them in the session, which is locked.
-- Each: {id, turn_id, role, parts: text, calls, results, incomplete}. Answers {after, created_at}.
create function put_messages(the_session text, before bigint, at timestamptz, messages jsonb) returns json
language plpgsql as $$
begin
  insert into message (id, session_id, turn_id, seq, calls, results, created_at, body)
  select m.id, the_session, m.turn_id, before + m.n, m.calls, m.results, at,
         message_body(m.id, the_session, m.turn_id, before + m.n, m.role, m.parts::json, m.incomplete, at)
    from rows from (jsonb_to_recordset(messages) as (
           id text, turn_id text, role text, parts text, calls text[], results text[], incomplete boolean
         )) with ordinality as m (id, turn_id, role, parts, calls, results, incomplete, n);
  return json_build_object('after', before, 'created_at', rfc3339(at));
end
$$;

create function usage_of(s jsonb) returns token_usage
language sql immutable as $$
  select row(
    (s ->> 'input_tokens')::bigint, (s ->> 'output_tokens')::bigint, (s ->> 'reasoning_tokens')::bigint,
    (s ->> 'cached_tokens')::bigint
  )::token_usage
$$;

-- Writes a step in place of the one with its index and attempt, and takes what that one had used out of the
-- usages, to which the new one's is added already.
create function replace_step(place text, the_turn text, s jsonb) returns void
language plpgsql as $$
declare
  former token_usage;
begin
  delete from step
   where turn_id = the_turn and index = (s ->> 'index')::integer and attempt = (s ->> 'attempt')::integer
  returning (usage).* into former;
  insert into step (turn_id, index, attempt, provider, model, tools_revision, tool_count, finish_reason,
                    usage, started_at, ended_at, discarded)
  values (the_turn, (s ->> 'index')::integer, (s ->> 'attempt')::integer, s ->> 'provider', s ->> 'model',
          (s ->> 'tools_revision')::bigint, (s ->> 'tool_count')::integer, s ->> 'finish_reason',
          usage_of(s -> 'usage'), (s ->> 'started_at')::timestamptz, (s ->> 'ended_at')::timestamptz,
          coalesce((s ->> 'discarded')::boolean, false));
  update session set usage = minus_usage(usage, former) where id = place;
  update turn set usage = minus_usage(usage, former) where id = the_turn;
end
$$;

-- Each: a NewExecution with its arguments as text.
create function add_executions(the_session text, the_owner text, executions jsonb) returns void
language plpgsql as $$
begin
  insert into execution (id, session_id, turn_id, owner, step, call_id, tool, connector, tools_revision,
                         arguments, state, repeatable, expires_at, started_at)
  select e.id, the_session, e.turn_id, the_owner, e.step, e.call_id, e.tool, e.connector,
         e.tools_revision, e.arguments::json, e.state, e.repeatable, e.expires_at,
         case when e.state = 'started' then clock_timestamp() end
    from jsonb_to_recordset(executions) as e (
      id text, turn_id text, step integer, call_id text, tool text, connector text,
      tools_revision bigint, arguments text, state execution_state, repeatable boolean, expires_at timestamptz
    );
end
$$;

-- Each: a Settlement with its output and its result as text.
create function settle_executions(the_session text, settlements jsonb) returns void
language plpgsql as $$
begin
  update execution e
     set state = 'settled', outcome = s.outcome, is_error = s.is_error, error = s.error,
         duration_ms = s.duration_ms, bytes = s.bytes, output = s.output::json,
         structured = s.structured, result = s.result::json, ended_at = clock_timestamp()
    from jsonb_to_recordset(settlements) as s (
      id text, outcome text, is_error boolean, error text, duration_ms double precision, bytes bigint,
      output text, structured boolean, result text
    )
   where e.id = s.id and e.session_id = the_session;
end
$$;

-- ---------------------------------------------------------------- verbs: sessions and messages

create function create_session(s jsonb) returns json
language plpgsql as $$
declare
  made session;
begin
  insert into session (id, owner, provider, model, credential_id, instructions, settings, title, metadata)
  values (s ->> 'id', s ->> 'owner', s ->> 'provider', s ->> 'model', s ->> 'credential_id',
          s ->> 'instructions', (s ->> 'settings')::json, s ->> 'title', (s ->> 'metadata')::json)
  returning * into made;
  insert into registry (session_id) values (made.id);
  return session_json(made);
end
$$;

-- 'deleted', 'busy', or null where there is none to see.
create function delete_session(visible_to text, the_session text) returns text
language plpgsql as $$
begin
  if not lock_session(visible_to, the_session) then
    return null;
  end if;
  if is_busy(the_session) then
    return 'busy';
  end if;
  delete from step where turn_id in (select id from turn where session_id = the_session);
  delete from turn where session_id = the_session;
  delete from message where session_id = the_session;
  delete from execution where session_id = the_session;
  delete from registry where session_id = the_session;
  delete from session where id = the_session;
  return 'deleted';
end
$$;

-- Null: no such session to see. {"busy": true}: a turn has not ended.
create function append_messages(visible_to text, the_session text, messages jsonb) returns json
language plpgsql as $$
declare
  at timestamptz := clock_timestamp();
  before bigint;
begin
  if not lock_session(visible_to, the_session) then
    return null;
  end if;
  if is_busy(the_session) then
    return json_build_object('busy', true);
  end if;
  update session set last_seq = last_seq + jsonb_array_length(messages), updated_at = at
   where id = the_session
  returning last_seq - jsonb_array_length(messages) into before;
  return json_build_object('placed', put_messages(the_session, before, at, messages));
end
$$;

-- As append_messages; null also where the session has no such message.
create function replace_message(visible_to text, the_session text, the_message text, m jsonb) returns json
language plpgsql as $$
declare
  changed message;
begin
  if not lock_session(visible_to, the_session) then
    return null;
  end if;
  perform from message where id = the_message and session_id = the_session;
  if not found then
    return null;
  end if;
  if is_busy(the_session) then
    return json_build_object('busy', true);
  end if;
  update message
     set body = message_body(id, session_id, turn_id, seq, m ->> 'role', (m ->> 'parts')::json, false,
                             created_at),
         calls = array(select jsonb_array_elements_text(m -> 'calls')),
         results = array(select jsonb_array_elements_text(m -> 'results'))
   where id = the_message
  returning * into changed;
  update session set updated_at = clock_timestamp(), rewrites = rewrites + 1 where id = the_session;
  return json_build_object('message', changed.body);
end
$$;

-- ---------------------------------------------------------------- verbs: turns

-- Accepts a turn, queues it, or says why not: one of the contract's Opened, with the lease's `epoch` for
-- the fence, the message's {after, created_at}, and of the turn only what the request has not. Null: no such
-- session to see.
-- `environment` in the request: it is to be opened only where a credential is surely there; else the answer is
-- {kind: 'unsure', ground}, and nothing is written.
create function open_turn(visible_to text, request jsonb) returns json
language plpgsql as $$
declare
  given jsonb := request -> 'turn';
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
  -- A queued turn's message comes when it starts, and the session is left alone until then.
  with opened as (
    insert into turn (id, session_id, owner, state, input, context, max_steps, provider, model,
                      idempotency_key, body_hash, base_seq, is_urgent, created_at, started_at)
    values (given ->> 'id', place.id, place.owner,
            case when active_id is null then 'running' else 'queued' end::turn_state,
            (given ->> 'input')::json, (given ->> 'context')::json, (given ->> 'max_steps')::integer,
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
  select m.id, place.id, m.turn_id, place.last_seq + 1, m.calls, m.results, at,
         message_body(m.id, place.id, m.turn_id, place.last_seq + 1, m.role, m.parts::json, m.incomplete, at)
    from jsonb_to_record(request -> 'message') as m (
      id text, turn_id text, role text, parts text, calls text[], results text[], incomplete boolean
    )
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

-- One write of the engine, whole or not at all: a Commit, with the ids of the calls that its messages
-- answer in `answered`. Null: the lease was lost, nothing is written.
-- A turn that ends or waits for input gives the lease back. Answers {placed: what put_messages says, if
-- there were any, has_queued: whether the session has a queued turn, where the commit ends one}.
create function commit_turn(fence jsonb, change jsonb) returns json
language plpgsql as $$
declare
  place text := fence ->> 'session_id';
  the_turn text := change ->> 'turn_id';
  ending jsonb := change -> 'end';
  messages jsonb := coalesce(change -> 'messages', '[]');
  s jsonb := change -> 'step';
  is_leaving boolean := ending is not null or change ->> 'state' = 'awaiting_input';
  touches boolean := is_leaving or s is not null or change ? 'messages';
  spent token_usage := case when s is null then row(0, 0, 0, 0)::token_usage else usage_of(s -> 'usage') end;
  at timestamptz := clock_timestamp();
  before bigint;
  the_owner text;
  is_new boolean;
  another boolean;
begin
  -- Writing the session locks it. Where this waits for the lock, the fence is looked at again and the turn is
  -- not; nor need it be, for whoever ends or parks a turn gives its lease back.
  update session
     set last_seq = last_seq + jsonb_array_length(messages), usage = add_usage(usage, spent),
         updated_at = case when touches then at else updated_at end,
         lease_owner = case when is_leaving then null else lease_owner end
   where id = place and lease_owner = fence ->> 'owner' and lease_epoch = (fence ->> 'epoch')::bigint
     and exists (
       select from turn
        where id = the_turn and session_id = place and state in ('running', 'awaiting_input')
     )
     and not exists (
       select from message
        where id = messages #>> '{0,id}' and session_id = place and turn_id = the_turn
     )
  returning last_seq - jsonb_array_length(messages), owner into before, the_owner;
  if not found then
    -- The same commit again, because its answer was lost on the way: what it wrote stands, lease or not.
    select seq - 1, created_at into before, at from message
     where id = messages #>> '{0,id}' and session_id = place and turn_id = the_turn;
    if not found then
      return null;
    end if;
    return json_build_object(
      'placed', json_build_object('after', before, 'created_at', rfc3339(at)),
      'has_queued', ending is not null and has_queued(place)
    );
  end if;

  -- With the session locked, and seeing what others left: a turn may have been queued meanwhile.
  with done as (
    insert into step (turn_id, index, attempt, provider, model, tools_revision, tool_count, finish_reason,
                      usage, started_at, ended_at, discarded)
    select the_turn, (s ->> 'index')::integer, (s ->> 'attempt')::integer, s ->> 'provider', s ->> 'model',
           (s ->> 'tools_revision')::bigint, (s ->> 'tool_count')::integer, s ->> 'finish_reason', spent,
           (s ->> 'started_at')::timestamptz, (s ->> 'ended_at')::timestamptz,
           coalesce((s ->> 'discarded')::boolean, false)
     where s is not null
        on conflict do nothing
    returning true
  ), said as (
    insert into message (id, session_id, turn_id, seq, calls, results, created_at, body)
    select m.id, place, m.turn_id, before + m.n, m.calls, m.results, at,
           message_body(m.id, place, m.turn_id, before + m.n, m.role, m.parts::json, m.incomplete, at)
      from rows from (jsonb_to_recordset(messages) as (
             id text, turn_id text, role text, parts text, calls text[], results text[], incomplete boolean
           )) with ordinality as m (id, turn_id, role, parts, calls, results, incomplete, n)
  ), changed as (
    update turn
       set usage = add_usage(usage, spent),
           state = coalesce(ending ->> 'state', change ->> 'state', state::text)::turn_state,
           attempt = coalesce((change ->> 'attempt')::integer, attempt),
           restarts = coalesce((change ->> 'restarts')::integer, restarts),
           announce = coalesce((change ->> 'announce')::json, announce),
           finish_reason = ending ->> 'finish_reason',
           error = (ending ->> 'error')::json,
           ended_at = case when ending is not null then at end
     where id = the_turn
  )
  select exists (select from done),
         ending is not null and exists (select from turn where session_id = place and state = 'queued')
    into is_new, another;
  if s is not null and not is_new then
    perform replace_step(place, the_turn, s);
  end if;
  if change ? 'executions' then
    perform add_executions(place, the_owner, change -> 'executions');
  end if;
  if change ? 'settlements' then
    perform settle_executions(place, change -> 'settlements');
  end if;
  if change ? 'answered' then
    -- The conversation holds these results now.
    update execution set result = null
     where turn_id = the_turn and call_id in (select jsonb_array_elements_text(change -> 'answered'));
  end if;
  return json_build_object(
    'placed', case when change ? 'messages' then
                json_build_object('after', before, 'created_at', rfc3339(at))
              end,
    'has_queued', another
  );
end
$$;

-- What a step reads before it renders: {messages, registry, cancel_requested}. Null: the lease was lost.
create function read_step(fence jsonb, the_turn text, after_seq bigint, known_revision bigint) returns json
language plpgsql stable as $$
declare
  place text := fence ->> 'session_id';
begin
  perform from session
    where id = place and lease_owner = fence ->> 'owner' and lease_epoch = (fence ->> 'epoch')::bigint;
  if not found then
    return null;
  end if;
  return json_build_object(
    'messages', history(place, after_seq),
    'registry', newer_registry(place, known_revision),
    'cancel_requested', coalesce((select cancel_requested from turn where id = the_turn), true)
  );
end
$$;

-- {turn, epoch, message: {after, created_at}}, or null where a turn is active or none is queued.
create function start_queued(the_session text, message_id text, new_owner text, seconds float8) returns json
language plpgsql as $$
declare
  next turn;
  at timestamptz := clock_timestamp();
  before bigint;
  epoch bigint;
begin
  if not lock_session(null, the_session) then
    return null;
  end if;
  perform from turn where session_id = the_session and state in ('running', 'awaiting_input');
  if found then
    return null;
  end if;
  update turn set state = 'running', started_at = at
   where id = (
     select id from turn where session_id = the_session and state = 'queued'
      order by is_urgent desc, created_at limit 1
   )
  returning * into next;
  if not found then
    return null;
  end if;
  epoch := take_lease(the_session, new_owner, seconds);
  update session set last_seq = last_seq + 1, updated_at = at where id = the_session
  returning last_seq - 1 into before;
  return json_build_object(
    'turn', turn_json(next),
    'message', put_messages(the_session, before, at, jsonb_build_array(jsonb_build_object(
      'id', message_id, 'turn_id', next.id, 'role', 'user', 'parts', next.input::text,
      'calls', '[]'::jsonb, 'results', '[]'::jsonb, 'incomplete', false
    ))),
    'epoch', epoch
  );
end
$$;

-- Ends a turn that never ran; whether it did.
create function end_queued(the_turn text, ending jsonb) returns boolean
language plpgsql as $$
begin
  perform lock_session(null, (select session_id from turn where id = the_turn));
  update turn
     set state = (ending ->> 'state')::turn_state, finish_reason = ending ->> 'finish_reason',
         error = (ending ->> 'error')::json, ended_at = clock_timestamp()
   where id = the_turn and state = 'queued';
  return found;
end
$$;

-- {turn, epoch}, or null while an approval is open or another owner has the session.
create function resume_awaiting(the_turn text, new_owner text, seconds float8) returns json
language plpgsql as $$
declare
  place text := (select session_id from turn where id = the_turn);
  target turn;
begin
  if not lock_session(null, place) then
    return null;
  end if;
  select * into target from turn where id = the_turn and state = 'awaiting_input' for no key update;
  if not found then
    return null;
  end if;
  perform from execution
    where turn_id = the_turn and state = 'awaiting_approval' and decision is null
      and not target.cancel_requested;
  if found then
    return null;
  end if;
  perform from session
    where id = place and lease_owner <> new_owner and lease_until > clock_timestamp();
  if found then
    return null;
  end if;
  update turn set state = 'running' where id = the_turn returning * into target;
  return json_build_object('turn', turn_json(target), 'epoch', take_lease(place, new_owner, seconds));
end
$$;

-- [{turn, epoch, announce}]: running turns whose lease lapsed or was given back, now the new owner's.
-- Two at once never get the same one: a locked session is skipped, and the lease is looked at again once it
-- is locked.
create function recover_turns(new_owner text, seconds float8, most integer) returns json
language plpgsql as $$
declare
  lost record;
  target turn;
  taken json[] := '{}';
begin
  for lost in
    select t.id, t.session_id, s.lease_owner is null as was_handed_over
      from turn t join session s on s.id = t.session_id
     where t.state = 'running' and (s.lease_owner is null or s.lease_until < clock_timestamp())
     order by s.lease_until
     limit most
       for no key update of s skip locked
  loop
    -- A lease that was handed over on purpose is no failure of the turn.
    update turn set recoveries = recoveries + case when lost.was_handed_over then 0 else 1 end
     where id = lost.id and state = 'running'
    returning * into target;
    continue when not found;
    taken := taken || json_build_object(
      'turn', turn_json(target), 'announce', target.announce,
      'epoch', take_lease(lost.session_id, new_owner, seconds)
    );
  end loop;
  return to_json(taken);
end
$$;

-- ---------------------------------------------------------------- verbs: the ledger

-- Whether the fence held.
create function begin_execution(fence jsonb, the_execution text) returns boolean
language plpgsql as $$
begin
  if not lock_fence(fence) then
    return false;
  end if;
  update execution set state = 'started', started_at = clock_timestamp()
   where id = the_execution and session_id = fence ->> 'session_id' and state <> 'settled';
  return true;
end
$$;

create function settle_execution(fence jsonb, settlement jsonb) returns boolean
language plpgsql as $$
begin
  if not lock_fence(fence) then
    return false;
  end if;
  perform settle_executions(fence ->> 'session_id', jsonb_build_array(settlement));
  return true;
end
$$;

-- 'decided', 'not_awaiting', or null where there is no such call to see. A lapsed approval can only expire.
create function decide_execution(visible_to text, the_turn text, the_call text, d jsonb) returns text
language plpgsql as $$
begin
  if not lock_session(visible_to, (select session_id from turn where id = the_turn)) then
    return null;
  end if;
  perform from execution where turn_id = the_turn and call_id = the_call;
  if not found then
    return null;
  end if;
  update execution
     set decision = (d ->> 'decision')::approval_decision, reason = d ->> 'reason', decided_by = d ->> 'by',
         sealed_arguments = decode(d ->> 'sealed_arguments', 'base64')
   where turn_id = the_turn and call_id = the_call and state = 'awaiting_approval' and decision is null
     and (d ->> 'decision' = 'expired' or expires_at is null or expires_at > clock_timestamp());
  return case when found then 'decided' else 'not_awaiting' end;
end
$$;
