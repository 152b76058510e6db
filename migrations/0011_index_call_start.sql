-- The calls of the last hour are asked for among all that the ledger keeps.
create index execution_start on execution (coalesce(started_at, created_at));

-- A server has no statistics of an index's expression until it gathers them, and goes through the ledger until then. The
-- embedded one is to have none: what it knows of an empty table it would believe for ever.
do $$
begin
  if current_setting('enable_seqscan') = 'on' then
    analyze execution;
  end if;
end
$$;
