-- Drops what is ours. Without CASCADE: what others built on it stops this.
-- Takes ACCESS EXCLUSIVE on each table: set lock_timeout before.
DROP VIEW IF EXISTS :"schema".events;
DROP TABLE IF EXISTS :"events_schema".:"events_table";
DROP TABLE IF EXISTS :"schema".parked;
DROP TABLE IF EXISTS :"schema".lanes;
DROP TABLE IF EXISTS :"schema".subscriptions;
DROP TABLE IF EXISTS :"schema".windows;
DROP TABLE IF EXISTS :"schema".relays;
DROP TABLE IF EXISTS :"schema".run;
DROP TABLE IF EXISTS :"schema".installation;
