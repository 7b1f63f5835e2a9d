-- How many relays own lanes, and how many lanes nobody owns.
SELECT count(DISTINCT owner), count(*) FILTER (WHERE owner IS NULL) FROM commitrelay.lanes;
