-- Keeps the planner, until the transaction ends, from collecting and sorting all that a statement might return before it
-- returns the first rows. Sent together with a page's statement: nobody analyses the leaves, and without numbers, or with
-- old ones, the planner takes a stretch of 100,000 events for a handful, and would sort all of it anew for each page.
-- Walks no index; takes no lock.
SELECT set_config('enable_sort', 'off', true);
