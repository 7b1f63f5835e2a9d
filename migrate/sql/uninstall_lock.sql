-- Keeps writers and relays away until the end. Whoever comes meanwhile queues behind a wait, so the wait is short.
SET LOCAL lock_timeout = '3s';
SET LOCAL statement_timeout = 0;
LOCK TABLE :"events_schema".:"events_table" IN ACCESS EXCLUSIVE MODE;
