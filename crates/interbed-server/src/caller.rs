//! Who sent a request, and what is noted of it.

use std::sync::Arc;

use crate::request_log::RequestLog;
use crate::tenant::Tenant;

/// The sender of a request that may be served.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) tenant: Tenant,
    /// What becomes of the request.
    pub(crate) log: Arc<RequestLog>,
}
