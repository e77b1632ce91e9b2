//! The sender of a request, and the log of the request.

use std::sync::Arc;

use crate::request_log::RequestLog;
use crate::tenant::Tenant;

/// The authenticated sender of a request.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) tenant: Tenant,
    /// The log of the request.
    pub(crate) log: Arc<RequestLog>,
}
