-- Whether transactions may write, unless they say otherwise. Reads no table and takes no lock.
SELECT pg_is_in_recovery(),
       current_setting('default_transaction_read_only')::boolean,
       current_user::text;
