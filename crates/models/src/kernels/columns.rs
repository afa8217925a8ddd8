//! Parts of rows.

use rayon::prelude::*;

/// Copies bytes `offset..offset + len` of each run of `run_bytes`; `x`: whole runs, `out`: `len` bytes for each.
pub(crate) fn select_columns(x: &[u8], run_bytes: usize, offset: usize, len: usize, out: &mut [u8], threads: usize) {
    /// Below this many bytes a second thread costs more than it saves.
    const WORTH_SPLITTING: usize = 1 << 17;
    if len == 0 || out.is_empty() {
        return;
    }
    let copy = |first: usize, out: &mut [u8]| {
        for (x, out) in x[first * run_bytes..].chunks_exact(run_bytes).zip(out.chunks_exact_mut(len)) {
            out.copy_from_slice(&x[offset..][..len]);
        }
    };
    if threads <= 1 || out.len() < WORTH_SPLITTING {
        return copy(0, out);
    }
    let share = (out.len() / len).div_ceil(threads);
    out.par_chunks_mut(share * len).enumerate().for_each(|(task, out)| copy(task * share, out));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_gives_its_part() {
        let x: Vec<u8> = (0..12).collect();
        let mut out = [0; 6];
        select_columns(&x, 4, 1, 2, &mut out, 1);
        assert_eq!(out, [1, 2, 5, 6, 9, 10]);
        select_columns(&x, 4, 4, 0, &mut [], 2);
    }

    #[test]
    fn threads_share_the_runs() {
        let x: Vec<u8> = (0..1_000_003 * 3u32).map(|i| (i % 251) as u8).collect();
        let (mut one, mut four) = (vec![0; 1_000_003], vec![0; 1_000_003]);
        select_columns(&x, 3, 2, 1, &mut one, 1);
        select_columns(&x, 3, 2, 1, &mut four, 4);
        assert!(one == four && one[..3] == [2, 5, 8]);
    }
}
