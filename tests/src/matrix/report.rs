//! The table.

use super::{answer::Answer, points::Axis};
use std::fmt::Write as _;

/// One line of the table.
#[derive(Debug, Clone)]
pub struct Row {
    /// Model, type of keys and values, and rows of the prompt.
    pub star: String,
    /// `None` for the base point.
    pub axis: Option<Axis>,
    /// The point.
    pub point: String,
    /// What there is to say of it.
    pub note: String,
    /// Runs that this line is for: points of one name that gave the same.
    pub runs: usize,
    /// What it gave, or why it gave nothing.
    pub answer: Result<Answer, String>,
    /// Where it parts from the base point, or why that cannot be told; `None` if it does not part.
    pub difference: Option<String>,
}

impl Row {
    /// Whether it gave the bits of the base point.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.answer.is_ok() && self.difference.is_none()
    }

    fn same_line(&self, other: &Self) -> bool {
        self.is_equal()
            && other.is_equal()
            && (&self.star, self.axis, &self.point) == (&other.star, other.axis, &other.point)
            && self.answer == other.answer
    }

    fn line(&self) -> String {
        let short = |hash: &str| hash.get(..16).unwrap_or(hash).to_owned();
        let (logits, tokens) = match &self.answer {
            Ok(answer) if answer.ended => (
                short(&answer.logits),
                format!("{} ({} tokens, then an end)", short(&answer.tokens_sha256()), answer.tokens.len()),
            ),
            Ok(answer) => (short(&answer.logits), short(&answer.tokens_sha256())),
            Err(_) => Default::default(),
        };
        let verdict = match (&self.answer, &self.difference) {
            (Err(error), _) => format!("**not run**: {error}"),
            (Ok(_), Some(difference)) => format!("**no**: {difference}"),
            (Ok(_), None) if self.axis.is_none() => "base".to_owned(),
            (Ok(_), None) => "yes".to_owned(),
        };
        let runs = if self.runs > 1 { format!(" ({} runs)", self.runs) } else { String::new() };
        let note = if self.note.is_empty() { String::new() } else { format!(": {}", self.note) };
        let axis = self.axis.map_or("base", Axis::name);
        format!("| {} | {axis} | {}{runs}{note} | {logits} | {tokens} | {verdict} |", self.star, self.point)
    }
}

/// All lines.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// Adds a line; one that says the same as that before it is counted there.
    pub fn add(&mut self, row: Row) {
        match self.rows.last_mut() {
            Some(last) if last.same_line(&row) => last.runs += 1,
            _ => self.rows.push(row),
        }
    }

    /// The lines.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Runs beside the base points.
    #[must_use]
    pub fn compared(&self) -> usize {
        self.rows.iter().filter(|row| row.axis.is_some()).map(|row| row.runs).sum()
    }

    /// Lines that are not equal, one each.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        self.rows.iter().filter(|row| !row.is_equal()).map(Row::line).collect()
    }

    /// The table in Markdown.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text =
            "| model, KV, prompt | axis | point | logits | tokens | equal |\n|---|---|---|---|---|---|\n".to_owned();
        for row in &self.rows {
            let _ = writeln!(text, "{}", row.line()); // writing to a String cannot fail
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(axis: Option<Axis>, answer: Result<&str, &str>, difference: Option<&str>) -> Row {
        let answer =
            answer.map(|logits| Answer { logits: logits.to_owned(), tokens: vec![1], steps: None, ended: false });
        Row {
            star: "m".to_owned(),
            axis,
            point: "p".to_owned(),
            note: String::new(),
            runs: 1,
            answer: answer.map_err(str::to_owned),
            difference: difference.map(str::to_owned),
        }
    }

    #[test]
    fn equal_points_of_one_name_are_one_line_and_others_are_faults() {
        let mut report = Report::default();
        for row in [
            row(None, Ok("a"), None),
            row(Some(Axis::Partition), Ok("a"), None),
            row(Some(Axis::Partition), Ok("a"), None),
            row(Some(Axis::Partition), Ok("b"), Some("step 3")),
            row(Some(Axis::Partition), Err("no memory"), None),
        ] {
            report.add(row);
        }
        let table = report.table();
        assert!(table.contains("| m | partition | p (2 runs) | a | "), "{table}");
        assert!(table.contains("**no**: step 3 |") && table.contains("**not run**: no memory |"), "{table}");
        assert_eq!((report.rows().len(), report.compared(), report.faults().len()), (4, 4, 2));
    }
}
