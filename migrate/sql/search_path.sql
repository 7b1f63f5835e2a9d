-- Names below mean PostgreSQL's own functions and types, whatever else the search_path offers.
SET LOCAL search_path = pg_catalog, pg_temp;
