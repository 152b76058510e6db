-- A turn that is taken over tells whether its owner gave it away, and those that the caller cannot open are left
-- to others. The function of three arguments stays for replicas of the version before.

-- Two at once never get the same one: a locked session is skipped, and the lease is looked at again once it
-- is locked.
create function recover_turns(new_owner text, seconds float8, most integer, unwanted text[]) returns json
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
       and t.id <> all (unwanted)
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
      'was_handed_over', lost.was_handed_over,
      'epoch', take_lease(lost.session_id, new_owner, seconds)
    );
  end loop;
  return to_json(taken);
end
$$;
