-- Empties a slot. The sequence goes on: its numbers are never handed out again. Takes ACCESS EXCLUSIVE on the leaf.
TRUNCATE ONLY :"leaf_schema".:"leaf" CONTINUE IDENTITY;
