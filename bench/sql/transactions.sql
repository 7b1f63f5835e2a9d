-- Transactions of database $1 that have ended, as far as its sessions have told.
SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1;
