-- The calls of the last hour are asked for among all that the ledger keeps.
create index execution_start on execution (coalesce(started_at, created_at));
