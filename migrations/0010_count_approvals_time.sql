-- How long an approval is waited for is counted by this server's clock. Replicas of the version before still say until
-- when, by theirs.

-- Each: a NewExecution with its arguments as text.
create or replace function add_executions(the_session text, the_owner text, executions jsonb) returns void
language plpgsql as $$
begin
  insert into execution (id, session_id, turn_id, owner, step, call_id, tool, connector, tools_revision,
                         arguments, state, repeatable, expires_at, started_at)
  select e.id, the_session, e.turn_id, the_owner, e.step, e.call_id, e.tool, e.connector,
         e.tools_revision, e.arguments::json, e.state, e.repeatable,
         coalesce(e.expires_at, seconds_from_now(e.lapses_in)),
         case when e.state = 'started' then clock_timestamp() end
    from jsonb_to_recordset(executions) as e (
      id text, turn_id text, step integer, call_id text, tool text, connector text, tools_revision bigint,
      arguments text, state execution_state, repeatable boolean, expires_at timestamptz, lapses_in float8
    );
end
$$;
