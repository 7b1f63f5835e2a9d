-- Removes what the demo made. Waits for the locks of transactions that still use it, of which there should be none.
DROP SCHEMA IF EXISTS :"schema", :"state_schema" CASCADE;
