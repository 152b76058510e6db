-- A default that was put aside on purpose stands in for nothing: whoever asks for a credential gets what there is
-- beside it, here as everywhere. Who may use which is decided in src/credentials/choose.ts; this finds what it
-- decides on, and has_credential says where its answer is sure to be yes.

-- The owner's default for the provider unless it is disabled, else the only active one. Where none is active, the
-- newest login that needs one anew comes, so that a refusal can say so.
create or replace function preferred_credential(the_owner text, the_provider text) returns json
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
     where m.state <> 'disabled'
       and (m.is_default or (m.state = 'active' and m.active = 1) or m.active = 0)
     order by m.is_default desc, m.id desc limit 1
  );
end
$$;
