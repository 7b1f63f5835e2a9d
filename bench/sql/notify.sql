-- The trigger that wakes a poller at each insert. NOTIFY takes a lock of the whole server at commit.
CREATE FUNCTION notify_outbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('outbox', '');
    RETURN NULL;
END
$$;
CREATE TRIGGER notify AFTER INSERT ON :"table" FOR EACH ROW EXECUTE FUNCTION notify_outbox();
