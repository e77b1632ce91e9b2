//! Requests about a model: its commit, its files, and the meaning of refusals.

use serde::Deserialize;

use crate::answers::{self, TreeFile};
use crate::error::HubProblem;
use crate::name::{HubName, is_commit, is_revision};
use crate::web::{Web, shown};

/// Maximum number of pages of a listing, of a thousand files each, that are requested.
const PAGES_MAX: usize = 64;
/// Maximum number of branches and tags that a message lists.
const NAMES_SHOWN: usize = 20;

/// Resolves the name's revision to a commit.
pub(crate) async fn commit_of(web: &Web, name: &HubName) -> Result<String, HubProblem> {
    let url = api(web, name, &["revision", name.revision()]);
    let bad = |message| HubProblem::BadAnswer { address: shown(&url), message };
    match web.json(url.clone()).await {
        Ok((text, _)) => match answers::commit(&text).map_err(&bad)? {
            commit if is_commit(name.revision()) && commit != name.revision() => {
                Err(bad(format!("it is of commit {commit}, but {} was asked for", name.revision())))
            }
            commit => Ok(commit),
        },
        Err(HubProblem::Status { status: 404, code, .. }) if code.contains("Revision") => {
            let what = format!("revision {:?} of {}", name.revision(), name.repository());
            let available = revisions_of(web, name).await.unwrap_or_default();
            Err(HubProblem::NotFound { endpoint: web.endpoint().to_owned(), what, available })
        }
        Err(problem) => Err(explain(web, name, "", problem)),
    }
}

/// Returns the branches and tags of a model, for a message.
async fn revisions_of(web: &Web, name: &HubName) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct RawRefs {
        #[serde(default)]
        branches: Vec<RawRef>,
        #[serde(default)]
        tags: Vec<RawRef>,
    }
    #[derive(Deserialize)]
    struct RawRef {
        name: String,
    }
    let (text, _) = web.json(api(web, name, &["refs"])).await.ok()?;
    let RawRefs { branches, tags } = serde_json::from_slice(&text).ok()?;
    let names = branches.into_iter().chain(tags).map(|found| found.name);
    Some(names.filter(|name| is_revision(name)).take(NAMES_SHOWN).collect())
}

/// Returns the files of a commit.
pub(crate) async fn tree_of(web: &Web, name: &HubName, commit: &str) -> Result<Vec<TreeFile>, HubProblem> {
    let mut url = api(web, name, &["tree", commit]);
    url.set_query(Some("recursive=true"));
    let (mut files, mut next, mut pages) = (Vec::new(), Some(url), 0);
    while let Some(url) = next {
        let address = shown(&url);
        pages += 1;
        if pages > PAGES_MAX {
            return Err(HubProblem::BadAnswer { address, message: format!("it has more than {PAGES_MAX} pages") });
        }
        let (text, more) = web.json(url).await.map_err(|problem| explain(web, name, "", problem))?;
        let read = answers::tree(&text);
        let (page, left_out) = read.map_err(|message| HubProblem::BadAnswer { address, message })?;
        for path in left_out {
            tracing::warn!("{}: the file {path:?} is left out: its name could lead elsewhere", name.repository());
        }
        files.extend(page);
        next = more;
    }
    Ok(files)
}

fn api(web: &Web, name: &HubName, parts: &[&str]) -> reqwest::Url {
    web.url(["api", "models", &name.owner, &name.model].into_iter().chain(parts.iter().copied()))
}

/// Translates a status of the Hub itself into a problem with the model. Other problems, and statuses of other servers,
/// are returned unchanged.
pub(crate) fn explain(web: &Web, name: &HubName, what: &str, problem: HubProblem) -> HubProblem {
    let HubProblem::Status { address, status, code } = problem else { return problem };
    let endpoint = web.endpoint().to_owned();
    if !address.starts_with(&format!("{endpoint}/")) {
        return HubProblem::Status { address, status, code };
    }
    match status {
        404 if !what.is_empty() => {
            HubProblem::NotFound { endpoint, what: format!("file {what}"), available: Vec::new() }
        }
        // Without access, the Hub does not reveal whether a model exists.
        401 | 404 if status == 404 || code.contains("RepoNotFound") => {
            let what =
                format!("model {}{}", name.repository(), if web.has_token() { " that this token may see" } else { "" });
            HubProblem::NotFound { endpoint, what, available: Vec::new() }
        }
        401 | 403 => {
            let page = format!("{endpoint}/{}", name.repository());
            HubProblem::Denied { status, code, has_token: web.has_token(), page }
        }
        _ => HubProblem::Status { address, status, code },
    }
}
