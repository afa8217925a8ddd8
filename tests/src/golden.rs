//! Golden cases: what a reference implementation computed, and how to read it.
