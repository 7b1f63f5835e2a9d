-- Keeps the planner, until the transaction ends, from reading or sorting whole leaves, or all of an index above a number, to find
-- the next events: nobody analyses them, so it cannot know how many there are. And from compiling for seconds what is done
-- in milliseconds. Walks no index; takes no lock.
SELECT set_config('enable_sort', 'off', true),
       set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('jit', 'off', true);
