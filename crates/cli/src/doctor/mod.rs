//! `softverbs doctor`: what on this machine would keep programs from working, in plain words.
//!
//! Every check gives findings; none changes anything that stays. A finding is fine, a note (works,
//! with a consequence worth knowing) or a problem (something will not work). Problems make the
//! exit status 1.

mod host;
mod program;
mod versions;

use std::ffi::OsStr;
use std::io::{Write, stdout};

use serde::Serialize;

use crate::args::DoctorArgs;
use crate::dropin::Library;
use crate::failure::{Failure, Outcome};

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// As it should be.
    Fine,
    /// Works, with a consequence.
    Note,
    /// Something will not work.
    Problem,
}

/// What a check found.
#[derive(Debug, Serialize)]
struct Finding {
    verdict: Verdict,
    subject: &'static str,
    text: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn fine(subject: &'static str, text: impl Into<String>) -> Self {
        Self::new(Verdict::Fine, subject, text, None)
    }

    fn note(subject: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Verdict::Note, subject, text, Some(remedy.into()))
    }

    fn problem(subject: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Verdict::Problem, subject, text, Some(remedy.into()))
    }

    fn new(
        verdict: Verdict,
        subject: &'static str,
        text: impl Into<String>,
        remedy: Option<String>,
    ) -> Self {
        Self {
            verdict,
            subject,
            text: text.into(),
            remedy: remedy.filter(|remedy| !remedy.is_empty()),
        }
    }
}

/// Looks at everything and prints what there is to say.
pub(crate) fn run(args: &DoctorArgs) -> Outcome<()> {
    let findings = examine(args.program.as_deref());
    let mut out = stdout().lock();
    for finding in &findings {
        if args.json {
            let line = serde_json::to_string(finding)
                .map_err(|error| Failure::run(format!("JSON: {error}")))?;
            writeln!(out, "{line}")?;
        } else {
            print(&mut out, finding)?;
        }
    }
    out.flush()?;
    match findings
        .iter()
        .filter(|finding| finding.verdict == Verdict::Problem)
        .count()
    {
        0 => Ok(()),
        1 => Err(Failure::run("1 problem")),
        count => Err(Failure::run(format!("{count} problems"))),
    }
}

fn examine(program: Option<&OsStr>) -> Vec<Finding> {
    let mut findings = host::examine();
    match Library::find() {
        Ok(library) => {
            findings.extend(versions::examine(&library));
            if let Some(program) = program {
                findings.extend(program::examine(program, &library));
            }
        }
        Err(failure) => findings.push(Finding::problem(
            "library",
            failure.to_string(),
            "softverbs run and softverbs env need it; everything else works without",
        )),
    }
    findings
}

fn print(out: &mut impl Write, finding: &Finding) -> std::io::Result<()> {
    let verdict = match finding.verdict {
        Verdict::Fine => "ok",
        Verdict::Note => "note",
        Verdict::Problem => "PROBLEM",
    };
    writeln!(out, "{verdict:<8} {}: {}", finding.subject, finding.text)?;
    if let Some(remedy) = &finding.remedy {
        writeln!(out, "         {remedy}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_and_its_remedy() {
        let mut out = Vec::new();
        print(&mut out, &Finding::fine("devices", "2")).unwrap();
        print(
            &mut out,
            &Finding::problem("program", "is static", "link it"),
        )
        .unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "ok       devices: 2\nPROBLEM  program: is static\n         link it\n"
        );
    }
}
