-- A change of a session holds from its next turn on: whoever takes over the turn under way reads here what
-- that one began with.
alter table turn add column began_with json;

-- Before a session is changed; true, so that it can stand in the condition of the change.
create function keep_for_turn(the_session text) returns boolean
language plpgsql as $$
begin
  perform lock_session(null, the_session);
  update turn t
     set began_with = json_build_object(
       'provider', s.provider, 'model', s.model, 'credential_id', s.credential_id,
       'instructions', s.instructions, 'settings', s.settings
     )
    from session s
   where s.id = the_session and t.session_id = s.id
     and t.state in ('running', 'awaiting_input') and t.began_with is null;
  return true;
end
$$;
