-- A login of a provider whose logins the operator has switched off opens no turn. `logins`: the providers whose logins
-- are on; null from a replica of the version before, which looks at each login itself then.
create function serves(credential json, logins jsonb) returns boolean
language sql stable as $$
  select serves(credential)
     and (credential ->> 'kind' <> 'oauth' or coalesce(logins ? (credential ->> 'provider'), false))
$$;

-- `environment`: `{keys, logins}`; from a replica of the version before, the keys alone.
create or replace function has_credential(place session, wanted text, named json, preferred json, environment jsonb)
returns boolean
language sql stable as $$
  select case
    when place.credential_id is not null and wanted = place.provider
      then coalesce(named ->> 'provider' = wanted and serves(named, environment -> 'logins'), false)
    when preferred is null then coalesce(environment -> 'keys', environment) ? wanted
    else serves(preferred, environment -> 'logins')
  end
$$;
