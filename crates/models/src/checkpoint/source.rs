//! Where the values of a constant are in a source, and what is done to them on the way in.

use super::{CheckpointRef, StoredTensor};
use crate::error::ModelError;
use plimsoll_linear::WeightType;
use std::ops::Range;

/// The values of one constant: the selected rows of one or more tensors, one after the other.
///
/// A constant of one axis has rows of one element, one of two axes `[out_features, in_features]` rows of `in_features`, one of three
/// `[experts, out_features, in_features]` has its experts' rows one after the other.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Source {
    pub(crate) parts: Vec<Part>,
    pub(crate) map: Map,
    /// Whether the matrix may be quantized at load if the caller asks for it.
    pub(crate) quantizable: bool,
}

/// Rows of one tensor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Part {
    /// Name in the source.
    pub(crate) tensor: String,
    /// Shape that it must have there.
    pub(crate) shape: Vec<usize>,
    pub(crate) rows: Rows,
}

/// Which rows of a tensor are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rows {
    /// All of them.
    All,
    /// The rows are seen as `[groups, group_rows]`; of each group, `len` rows from `start` on are taken.
    Groups { group_rows: usize, start: usize, len: usize },
}

/// A change of each value, computed in f32. Only constants of one axis can have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Map {
    /// None.
    Same,
    /// `1 + x`: norm weights that are stored as their distance from one.
    AddOne,
    /// `-exp(x)`: decay rates that are stored as logarithms.
    NegExp,
}

impl Map {
    pub(crate) fn apply(self, value: f32) -> f32 {
        match self {
            Self::Same => value,
            Self::AddOne => 1.0 + value,
            Self::NegExp => -libm::expf(value),
        }
    }
}

impl Source {
    /// A whole tensor of the constant's own shape.
    pub(crate) fn whole(tensor: String, shape: &[usize]) -> Self {
        Self::of(vec![Part { tensor, shape: shape.to_vec(), rows: Rows::All }])
    }

    /// Several parts, unchanged.
    pub(crate) fn of(parts: Vec<Part>) -> Self {
        Self { parts, map: Map::Same, quantizable: true }
    }

    pub(crate) fn with_map(self, map: Map) -> Self {
        Self { map, ..self }
    }

    /// Keeps the matrix as it is stored, whatever the caller asks for.
    pub(crate) fn kept(self) -> Self {
        Self { quantizable: false, ..self }
    }

    /// Finds the parts and checks them against a constant of `shape`.
    ///
    /// # Errors
    /// [`ModelError`] naming the tensor that is missing, of another shape or type, or whose type differs from that of the first part.
    ///
    /// # Panics
    /// If the parts do not add up to the constant: a mistake in an architecture, whatever the source.
    pub(crate) fn resolve<'a>(
        &self,
        name: &str,
        shape: &[usize],
        checkpoint: CheckpointRef<'a>,
    ) -> Result<Resolved<'a>, ModelError> {
        let row_elements = if shape.len() == 1 { 1 } else { shape[shape.len() - 1] };
        let mut tensors = Vec::with_capacity(self.parts.len());
        let mut rows = Vec::with_capacity(self.parts.len());
        let mut stored: Option<WeightType> = None;
        for part in &self.parts {
            let tensor = checkpoint.tensor(&part.tensor)?.expect_shape(&part.shape)?;
            let kind = if shape.len() == 1 { tensor.plain_type()? } else { tensor.weight_type()? };
            if let Some(first) = stored.filter(|&first| first != kind) {
                return Err(ModelError::MixedTypes {
                    constant: name.to_owned(),
                    tensor: super::one_line(&part.tensor),
                    found: kind.name(),
                    first: first.name(),
                });
            }
            stored = Some(kind);
            let elements: usize = part.shape.iter().product();
            assert_eq!(elements % row_elements, 0, "{name}: {} of {:?} in other rows", part.tensor, part.shape);
            rows.push(elements / row_elements);
            tensors.push(tensor);
        }
        let selected: usize = self.parts.iter().zip(&rows).map(|(part, &rows)| part.rows.count(rows)).sum();
        let wanted: usize = shape.iter().product::<usize>() / row_elements;
        assert_eq!(selected, wanted, "{name}: rows of {:?}", self.parts);
        let stored = stored.expect("a source has at least one part");
        Ok(Resolved { tensors, rows, stored, row_elements })
    }

    /// The stored rows behind the constant's rows `wanted`, as runs that lie together: index of the part, rows of its tensor.
    pub(crate) fn runs(&self, resolved: &Resolved<'_>, wanted: Range<usize>) -> Vec<(usize, Range<usize>)> {
        let mut runs = Vec::new();
        let mut first = 0;
        for (index, part) in self.parts.iter().enumerate() {
            let count = part.rows.count(resolved.rows[index]);
            let (mut row, end) = (wanted.start.max(first), wanted.end.min(first + count));
            while row < end {
                let (stored, left) = part.rows.place(row - first, count);
                let len = left.min(end - row);
                runs.push((index, stored..stored + len));
                row += len;
            }
            first += count;
        }
        runs
    }
}

/// A source whose tensors were found and fit.
#[derive(Debug)]
pub(crate) struct Resolved<'a> {
    pub(crate) tensors: Vec<StoredTensor<'a>>,
    /// Rows of each tensor.
    rows: Vec<usize>,
    /// The type of all of them.
    pub(crate) stored: WeightType,
    pub(crate) row_elements: usize,
}

impl Rows {
    /// How many rows are taken of a tensor of `rows`.
    fn count(self, rows: usize) -> usize {
        match self {
            Self::All => rows,
            Self::Groups { group_rows, start, len } => {
                assert!(start + len <= group_rows && rows.is_multiple_of(group_rows), "{self:?} of {rows} rows");
                rows / group_rows * len
            }
        }
    }

    /// The stored row of the `row`th taken, and how many taken rows lie together from there on.
    fn place(self, row: usize, count: usize) -> (usize, usize) {
        match self {
            Self::All => (row, count - row),
            // Neighbouring groups lie together when they are taken whole.
            Self::Groups { group_rows, len, .. } if len == group_rows => (row, count - row),
            Self::Groups { group_rows, start, len } => (row / len * group_rows + start + row % len, len - row % len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{GgmlType, Gguf, GgufWriter};

    fn file() -> Gguf {
        let mut writer = GgufWriter::new();
        for (name, shape) in [("a", &[6, 2][..]), ("b", &[4, 2]), ("v", &[8])] {
            let elements: usize = shape.iter().product();
            writer.tensor(name, shape, GgmlType::F32, vec![0; 4 * elements]).unwrap();
        }
        writer.tensor("half", &[4, 2], GgmlType::F16, vec![0; 16]).unwrap();
        Gguf::from_bytes(writer.to_bytes()).unwrap()
    }

    fn part(tensor: &str, shape: &[usize], rows: Rows) -> Part {
        Part { tensor: tensor.to_owned(), shape: shape.to_vec(), rows }
    }

    /// The stored rows in order, each as part and row.
    fn listed(source: &Source, shape: &[usize], wanted: Range<usize>) -> Vec<(usize, usize)> {
        let file = file();
        let resolved = source.resolve("x", shape, (&file).into()).unwrap();
        source.runs(&resolved, wanted).into_iter().flat_map(|(part, rows)| rows.map(move |row| (part, row))).collect()
    }

    #[test]
    fn groups_take_their_rows_of_every_group() {
        let rows = Rows::Groups { group_rows: 3, start: 1, len: 2 };
        let source = Source::of(vec![part("a", &[6, 2], rows)]);
        assert_eq!(listed(&source, &[4, 2], 0..4), [(0, 1), (0, 2), (0, 4), (0, 5)]);
        assert_eq!(listed(&source, &[4, 2], 1..3), [(0, 2), (0, 4)]);
        let values = Source::of(vec![part("v", &[8], Rows::Groups { group_rows: 8, start: 2, len: 3 })]);
        assert_eq!(listed(&values, &[3], 0..3), [(0, 2), (0, 3), (0, 4)]);
    }

    #[test]
    fn parts_follow_each_other_and_a_range_may_cross_them() {
        let source = Source::of(vec![part("a", &[6, 2], Rows::All), part("b", &[4, 2], Rows::All)]);
        assert_eq!(listed(&source, &[10, 2], 5..8), [(0, 5), (1, 0), (1, 1)]);
        let file = file();
        let resolved = source.resolve("x", &[2, 5, 2], (&file).into()).unwrap();
        assert_eq!(source.runs(&resolved, 0..10), [(0, 0..6), (1, 0..4)], "whole tensors are one run each");
    }

    #[test]
    fn tensors_of_another_shape_or_of_mixed_types_are_refused() {
        let file = file();
        let refused = |source: Source, shape: &[usize]| source.resolve("x", shape, (&file).into()).unwrap_err();
        let error = refused(Source::whole("a".to_owned(), &[3, 2]), &[3, 2]);
        assert!(matches!(error, ModelError::WrongShape { .. }), "{error}");
        let mixed = Source::of(vec![part("b", &[4, 2], Rows::All), part("half", &[4, 2], Rows::All)]);
        let error = refused(mixed, &[8, 2]).to_string();
        assert!(error.contains("\"half\"") && error.contains("F16") && error.contains("F32"), "{error}");
    }

    #[test]
    fn maps_are_computed_in_f32() {
        assert_eq!(Map::AddOne.apply(-0.25), 0.75);
        assert_eq!(Map::NegExp.apply(0.0), -1.0);
        assert_eq!(Map::Same.apply(3.0), 3.0);
    }
}
