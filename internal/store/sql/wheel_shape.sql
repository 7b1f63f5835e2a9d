-- The shape of the wheel: one row. Takes ACCESS SHARE.
SELECT slots, slot_seconds FROM :"schema".installation;
