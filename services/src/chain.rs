//! Services in their order.

use std::sync::Arc;

use crate::error::Error;
use crate::limit;
use crate::native::native;
use crate::part::Operation;
use crate::service::{About, PacketService};
use crate::settings::Settings;

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

    /// A chain of services that are compiled in, by their names, with the settings for them.
    ///
    /// # Errors
    /// Where there is no such service, they do not fit together, or a setting is for none of them or not as it should be.
    pub fn named<T: AsRef<str>>(names: &[T], mut settings: Settings) -> Result<Self, Error> {
        if !(1..=limit::CHAIN).contains(&names.len()) {
            return Err(Error::Length(names.len()));
        }
        let mut services: Vec<Arc<dyn PacketService>> = Vec::new();
        for name in names {
            let name = name.as_ref();
            // One that stands there already has taken its settings.
            if let Some(other) = services.iter().find(|other| other.about().name == name) {
                return Err(Error::Twice(other.about().name));
            }
            services.push(native(name, &mut settings)?);
        }
        settings.finish()?;
        Self::new(services)
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
