-- Prepares a transaction for taking a lock that writers may wait behind: nothing in it waits for long, its commit waits for no
-- standby, and it ends if its client does not go on. (Should the rows come back because a standby lacked that commit, they are
-- settled all the same.) Returns false if another relay has such a transaction for this events table.
-- Walks no index; takes an advisory lock on which nothing else stands.
SELECT set_config('lock_timeout', $1::text, true),
       set_config('statement_timeout', '2s', true),
       set_config('idle_in_transaction_session_timeout', '500ms', true),
       set_config('synchronous_commit', 'local', true),
       pg_try_advisory_xact_lock(hashtextextended('commitrelay wheel', :'events'::regclass::oid::bigint));
