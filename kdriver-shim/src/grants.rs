//! Doorbell grants, as a client is handed them.

use std::os::fd::OwnedFd;

use card_driver::backend::{DoorbellGrant, WakeGrant};
use shim_abi::DoorbellAccess;

/// A grant's description for its client.
#[must_use]
pub fn access(grant: &DoorbellGrant) -> DoorbellAccess {
    match grant {
        DoorbellGrant::Page { wake, .. } => {
            let WakeGrant { asleep, liveness, worked, .. } = *wake;
            DoorbellAccess::Page { asleep, liveness, worked }
        }
        DoorbellGrant::Relay { relay: WakeGrant { asleep, liveness, worked, .. }, .. } => {
            DoorbellAccess::Relay { asleep: *asleep, liveness: *liveness, worked: *worked }
        }
        DoorbellGrant::Device { offset, ioas, .. } => {
            DoorbellAccess::Device { offset: *offset, ioas: *ioas }
        }
    }
}

/// The descriptors of a grant, in the order in which a client expects them.
#[must_use]
pub fn into_descriptors(grant: DoorbellGrant) -> Vec<OwnedFd> {
    match grant {
        DoorbellGrant::Page { page, wake } => vec![page, wake.eventfd, wake.thread_page],
        DoorbellGrant::Relay { page, words, relay } => {
            vec![page, relay.eventfd, relay.thread_page, words]
        }
        DoorbellGrant::Device { function, iommu, life, .. } => vec![function, iommu, life],
    }
}
