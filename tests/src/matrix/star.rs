//! A star: the base point's answer, and each point's beside it.

use super::{
    answer::Answer,
    points::{Axis, How, Point, Scale, points},
    process::Programs,
    report::{Report, Row},
    request::Request,
};
use crate::{
    row_trace::{Difference, RowTrace},
    subject::Subject,
};
use anyhow::{Context, Result};
use plimsoll_attention::KvDtype;
use plimsoll_models::CpuSettings;

/// Threads of the base point.
const THREADS: usize = 2;

/// Requests of one prompt around a base point: chunks of 512 rows, two threads, the best instruction sets, no limit of memory, an executor
/// without a past.
#[derive(Debug)]
pub struct Star<'a> {
    base: Request<'a>,
    request: Request<'a>,
    answer: Answer,
}

impl<'a> Star<'a> {
    /// Runs the base point of the first `rows` tokens of the subject's prompt.
    ///
    /// # Errors
    /// If it cannot be run.
    pub fn new(subject: &'a Subject, rows: usize, kv: KvDtype) -> Result<Self> {
        Self::between(subject, subject, rows, kv)
    }

    /// As [`Star::new`], with another model for the points than for the base point: how the matrix itself is tested.
    ///
    /// # Errors
    /// If the base point cannot be run.
    pub fn between(base: &'a Subject, subject: &'a Subject, rows: usize, kv: KvDtype) -> Result<Self> {
        let settings = CpuSettings::detect(THREADS, kv);
        let prompt = base.prompt.get(..rows).with_context(|| format!("a prompt of {} tokens", base.prompt.len()))?;
        let request = Request { subject, prompt, settings };
        let base = Request { subject: base, ..request };
        let (answer, _) = base.run(&How::Cut(Request::BASE), &mut ())?;
        Ok(Self { base, request, answer })
    }

    /// What the base point gave.
    #[must_use]
    pub fn answer(&self) -> &Answer {
        &self.answer
    }

    /// The points of `axes`.
    #[must_use]
    pub fn points(&self, scale: Scale, axes: &[Axis]) -> Vec<Point> {
        points(scale, axes, self.request.prompt.len(), self.request.settings)
    }

    /// The line of the base point.
    #[must_use]
    pub fn base_row(&self) -> Row {
        self.row(None, "chunks of 512, 2 threads".to_owned(), String::new(), Ok(self.answer.clone()), None)
    }

    /// Runs a point; `None` if it needs a program or a file that is not there.
    pub fn compare(&self, point: &Point, programs: &Programs) -> Option<Row> {
        let outcome = match &point.how {
            How::Process(process) => process.run(&self.request, programs)?,
            how => self.request.run(how, &mut ()),
        };
        let (answer, note) = match outcome {
            Ok((answer, note)) => (Ok(answer), note),
            Err(error) => (Err(format!("{error:#}").replace('\n', " ")), String::new()),
        };
        let parts = answer.as_ref().is_ok_and(|answer| !answer.agrees(&self.answer));
        let difference = parts.then(|| match self.difference(&point.how, programs) {
            Ok(Some(difference)) => format!("first at {difference}"),
            Ok(None) => "when it ran again, every step was equal".to_owned(),
            Err(error) => format!("the step cannot be told: {error:#}"),
        });
        Some(self.row(Some(point.axis), point.name.clone(), note, answer, difference))
    }

    /// The first step that gives other bits at a point than at the base point, from traces of both.
    ///
    /// # Errors
    /// If one of them cannot be run.
    pub fn difference(&self, how: &How, programs: &Programs) -> Result<Option<Difference>> {
        let ours = match how {
            How::Process(process) => match process.trace(&self.base, &self.request, programs)? {
                Ok(trace) => trace,
                Err(difference) => return Ok(difference),
            },
            how => trace(&self.request, how)?,
        };
        Ok(trace(&self.base, &How::Cut(Request::BASE))?.first_difference(&ours))
    }

    /// Hashes of every step of a point that runs in this process.
    ///
    /// # Errors
    /// If it cannot be run.
    pub fn trace(&self, how: &How) -> Result<RowTrace> {
        trace(&self.request, how)
    }

    fn row(
        &self,
        axis: Option<Axis>,
        point: String,
        note: String,
        answer: Result<Answer, String>,
        difference: Option<String>,
    ) -> Row {
        let Request { subject, prompt, settings } = &self.request;
        let star = format!("{}, {}, {}", subject.name, kv_name(settings.kv_dtype), prompt.len());
        Row { star, axis, point, note, runs: 1, answer, difference }
    }
}

/// Every type of keys and values, as the binary names it.
const KV_NAMES: [(KvDtype, &str); 3] = [(KvDtype::F32, "f32"), (KvDtype::F16, "f16"), (KvDtype::Bf16, "bf16")];

pub(super) fn kv_name(dtype: KvDtype) -> &'static str {
    KV_NAMES.iter().find(|(known, _)| *known == dtype).map_or("?", |(_, name)| name)
}

/// The type of keys and values that the binary has this name for.
///
/// # Errors
/// If there is none.
pub fn kv_dtype(name: &str) -> Result<KvDtype> {
    let known = KV_NAMES.iter().find(|(_, known)| *known == name).map(|(dtype, _)| *dtype);
    known.with_context(|| format!("keys and values are f32, f16 or bf16, not {name}"))
}

pub(super) fn trace(request: &Request<'_>, how: &How) -> Result<RowTrace> {
    let mut trace = RowTrace::new(&request.subject.model);
    request.run(how, &mut trace)?;
    Ok(trace)
}

/// Which stars there are for a model.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Lengths of the prompts.
    pub rows: Vec<usize>,
    /// Types of keys and values.
    pub kv: Vec<KvDtype>,
    /// How many points.
    pub scale: Scale,
    /// Which of them.
    pub axes: Vec<Axis>,
}

/// Runs the stars of a subject and adds their lines to `report`; `heard` gets each line as it comes.
///
/// # Errors
/// If a base point cannot be run. A point that cannot is a line of the report.
pub fn run(
    subject: &Subject,
    plan: &Plan,
    programs: &Programs,
    report: &mut Report,
    mut heard: impl FnMut(&Row),
) -> Result<()> {
    for (&rows, &kv) in plan.rows.iter().flat_map(|rows| plan.kv.iter().map(move |kv| (rows, kv))) {
        let star = Star::new(subject, rows, kv).with_context(|| format!("{}, prompt of {rows}", subject.name))?;
        let points = star.points(plan.scale, &plan.axes);
        let lines = points.iter().filter_map(|point| star.compare(point, programs));
        for row in std::iter::once(star.base_row()).chain(lines) {
            heard(&row);
            report.add(row);
        }
    }
    Ok(())
}
