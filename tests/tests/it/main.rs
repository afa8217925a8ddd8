//! What only the whole workspace shows: results against a reference implementation, bits that never change, memory as planned.

mod determinism;
mod determinism_matrix;
mod determinism_segments;
mod histories;
mod memory;
mod prefix_cache;
mod smollm2;
mod tiny;
