-- Keeps everybody from a slot, for as long as it takes to see that all in it is settled and to empty it. Sent with NOWAIT
-- at first: whoever waits for this lock keeps all others waiting behind.
-- Takes ACCESS EXCLUSIVE on the leaf; wheel_begin.sql bounds how long it waits.
LOCK TABLE ONLY :"leaf_schema".:"leaf" IN ACCESS EXCLUSIVE MODE;
