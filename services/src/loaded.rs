//! The services that were loaded beside those that are compiled in.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Error;
use crate::limit;
use crate::native::natives;
use crate::service::{About, PacketService};

/// The services that were loaded into a card, by name.
#[derive(Clone, Debug, Default)]
pub struct Loaded(BTreeMap<String, Arc<dyn PacketService>>);

impl Loaded {
    /// Takes a service in.
    ///
    /// # Errors
    /// Where another has its name, or there are too many; nothing is loaded then.
    pub fn load(&mut self, service: Arc<dyn PacketService>) -> Result<(), Error> {
        let name = service.about().name.to_string();
        if natives().any(|about| about.name == name) {
            return Err(Error::Native(name));
        }
        if self.0.contains_key(&name) {
            return Err(Error::Loaded(name));
        }
        if self.0.len() >= limit::LOADED {
            return Err(Error::LoadedFull);
        }
        self.0.insert(name, service);
        Ok(())
    }

    /// Lets a service go, which is `attached` in so many places: that is refused, unless it is to be `now`. Chains that
    /// have it keep it until they are detached.
    ///
    /// # Errors
    /// Why not; it stays then.
    pub fn unload(&mut self, name: &str, attached: usize, now: bool) -> Result<(), Error> {
        if !self.0.contains_key(name) {
            let known = self.0.keys().cloned().collect();
            return Err(Error::NotLoaded { name: name.to_owned(), known });
        }
        if attached > 0 && !now {
            return Err(Error::InUse { name: name.to_owned(), chains: attached });
        }
        self.0.remove(name);
        Ok(())
    }

    /// The service of that name.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<dyn PacketService>> {
        self.0.get(name).map(Arc::clone)
    }

    /// Their descriptions, by name.
    pub fn abouts(&self) -> impl Iterator<Item = About> {
        self.0.values().map(|service| service.about().clone())
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::{Chain, Preprocess, Settings};

    #[derive(Debug)]
    struct Named(About);

    impl PacketService for Named {
        fn about(&self) -> &About {
            &self.0
        }
    }

    fn named(name: &str) -> Arc<dyn PacketService> {
        let name = Cow::Owned(name.to_owned());
        Arc::new(Named(About { name, ..Preprocess.about().clone() }))
    }

    #[test]
    fn a_loaded_service_is_found_by_its_name_until_it_is_unloaded() {
        let mut all = Loaded::default();
        all.load(named("mine")).unwrap();
        assert_eq!(all.load(named("mine")), Err(Error::Loaded("mine".into())));
        assert_eq!(all.load(named("preprocess")), Err(Error::Native("preprocess".into())));
        let chain = |all: &Loaded| Chain::with(&["mine"], Settings::default(), all);
        let kept = chain(&all).unwrap();
        assert!(matches!(Chain::named(&["mine"], Settings::default()), Err(Error::Unknown { .. })));
        let in_use = Error::InUse { name: "mine".into(), chains: 2 };
        assert_eq!(all.unload("mine", 2, false), Err(in_use));
        all.unload("mine", 2, true).unwrap();
        assert_eq!(kept.names(), ["mine"], "a chain keeps what it has");
        assert!(chain(&all).is_err());
        let none = all.unload("mine", 0, true).unwrap_err();
        assert_eq!(none.to_string(), "no service \"mine\" is loaded; none is");
        all.load(named("mine")).unwrap();
    }

    #[test]
    fn so_many_are_loaded_and_no_more() {
        let mut all = Loaded::default();
        for number in 0..limit::LOADED {
            all.load(named(&format!("it-{number}"))).unwrap();
        }
        assert_eq!(all.load(named("more")), Err(Error::LoadedFull));
        assert_eq!(all.abouts().count(), limit::LOADED);
    }
}
