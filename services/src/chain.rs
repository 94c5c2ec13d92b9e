//! Services in their order.

use std::sync::Arc;

use crate::error::Error;
use crate::limit;
use crate::native::{native, native_names};
use crate::part::Operation;
use crate::service::{About, PacketService};

/// Services that fit together, in their order.
#[derive(Clone, Debug)]
pub struct Chain(Vec<Arc<dyn PacketService>>);

impl Chain {
    /// Checks that services fit together in this order.
    ///
    /// # Errors
    /// Why they do not.
    pub fn new(services: Vec<Arc<dyn PacketService>>) -> Result<Self, Error> {
        if !(1..=limit::CHAIN).contains(&services.len()) {
            return Err(Error::Length(services.len()));
        }
        for (number, service) in services.iter().enumerate() {
            let about = service.about();
            let before = services.get(..number).unwrap_or_default();
            check_place(about, before)?;
        }
        let abouts = || services.iter().map(|service| service.about());
        let state = |about: &About| about.check_state.saturating_add(about.act_state);
        let state = abouts().map(state).fold(0, usize::saturating_add);
        if state > limit::STATE {
            return Err(Error::State(state));
        }
        let work = abouts().map(|about| about.work).fold(0, u32::saturating_add);
        if work > limit::WORK {
            return Err(Error::Work(work));
        }
        Ok(Self(services))
    }

    /// A chain of services that are compiled in, by their names.
    ///
    /// # Errors
    /// Where there is no such service, or they do not fit together.
    pub fn named<T: AsRef<str>>(names: &[T]) -> Result<Self, Error> {
        if !(1..=limit::CHAIN).contains(&names.len()) {
            return Err(Error::Length(names.len()));
        }
        let find = |name: &T| {
            let name = name.as_ref();
            native(name).ok_or_else(|| Error::Unknown {
                name: name.into(),
                known: native_names().collect(),
            })
        };
        Self::new(names.iter().map(find).collect::<Result<_, _>>()?)
    }

    /// The services.
    #[must_use]
    pub fn services(&self) -> &[Arc<dyn PacketService>] {
        &self.0
    }

    /// The names of the services.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|service| service.about().name).collect()
    }

    /// Whether any of the services sees messages of an operation that come.
    pub(crate) fn sees(&self, operation: Operation) -> bool {
        let sees = |about: &About| {
            about.operations.has(operation) && (about.stages.check || about.stages.act)
        };
        self.0.iter().any(|service| sees(service.about()))
    }

    /// The first service that changes payload which leaves.
    pub(crate) fn transforming(&self) -> Option<&About> {
        self.0.iter().map(|service| service.about()).find(|about| about.stages.transform)
    }
}

/// Checks that a service can stand behind others.
fn check_place(about: &About, before: &[Arc<dyn PacketService>]) -> Result<(), Error> {
    let name = about.name;
    if before.iter().any(|other| other.about().name == name) {
        return Err(Error::Twice(name));
    }
    let rewrites = before.iter().map(|other| other.about()).find(|other| other.stages.rewrites);
    if let Some(other) = rewrites.filter(|_| about.stages.check) {
        return Err(Error::CheckBehind { checks: name, rewrites: other.name });
    }
    let gives = before.iter().rev().find_map(|other| other.about().gives);
    match (about.takes, gives) {
        (Some(takes), Some(gives)) if takes != gives => Err(Error::Form { name, takes, gives }),
        _ => Ok(()),
    }
}
