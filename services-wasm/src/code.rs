//! A module's code, and the instances in which it is executed.

use wasmi::errors::InstantiationError;
use wasmi::{
    CompilationMode, Config, EnforcedLimits, Engine, ExternType, Instance, Linker, Memory,
    StackLimits, Store, StoreLimits, StoreLimitsBuilder, TypedFunc, WasmResults,
};

use services::Stages;

use crate::error::{Error, short};
use crate::{interface, limit};

/// Bytes of a page of memory.
const PAGE: u64 = 64 << 10;
/// Bytes that an instruction moves in bulk, by the interpreter's own reckoning.
const BYTES_FOR_FUEL: u64 = 64;

/// A function of the interface.
struct Function {
    name: &'static str,
    gives_number: bool,
    may_lack: bool,
}

const fn function(name: &'static str, gives_number: bool, may_lack: bool) -> Function {
    Function { name, gives_number, may_lack }
}

const FUNCTIONS: [Function; 6] = [
    function(interface::INTERFACE, true, false),
    function(interface::ABOUT, true, false),
    function(interface::ROOM, true, false),
    function(interface::CHECK, true, true),
    function(interface::ACT, false, true),
    function(interface::TRANSFORM, false, true),
];

/// A module's code: validated, translated, and shared by its instances.
pub(crate) struct Code {
    module: wasmi::Module,
    linker: Linker<StoreLimits>,
    limits: StoreLimits,
    /// The fuel that a new memory costs.
    fuel_of_memory: u64,
}

/// An instance, in which nothing has been called yet.
pub(crate) struct Fresh {
    pub(crate) store: Store<StoreLimits>,
    pub(crate) memory: Memory,
    instance: Instance,
    fuel: u64,
}

/// Why an instance did not do what it was called for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Its fuel was not enough.
    OutOfFuel,
    /// It did what it may not, in the interpreter's words.
    Fault(String),
}

impl From<wasmi::Error> for Failure {
    fn from(error: wasmi::Error) -> Self {
        match error.as_trap_code() {
            Some(wasmi::core::TrapCode::OutOfFuel) => Self::OutOfFuel,
            _ => Self::Fault(error.to_string()),
        }
    }
}

fn configuration() -> Config {
    let mut config = Config::default();
    config.consume_fuel(true);
    // A card's thread is not to translate between its packets.
    config.compilation_mode(CompilationMode::Eager);
    config.ignore_custom_sections(true);
    config.enforced_limits(EnforcedLimits::strict());
    config.wasm_multi_memory(false);
    config.wasm_memory64(false);
    let values = limit::VALUES.div_euclid(size_of::<u64>());
    if let Ok(limits) = StackLimits::new(values.min(128), values, limit::DEPTH) {
        config.set_stack_limits(limits);
    }
    config
}

impl Code {
    /// Translates a module, which may be anything.
    pub(crate) fn of(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > limit::MODULE {
            return Err(Error::Large(bytes.len()));
        }
        let engine = Engine::new(&configuration());
        let module = wasmi::Module::new(&engine, bytes);
        let module = module.map_err(|error| Error::Invalid(short(error)))?;
        if let Some(import) = module.imports().next() {
            let (module, name) = (short(import.module()), short(import.name()));
            return Err(Error::Import { module, name });
        }
        let memory = pages(&module)?.saturating_mul(PAGE);
        let bytes = usize::try_from(memory).unwrap_or(usize::MAX);
        // Growth fails: what a module begins with is all that it has.
        let limits = StoreLimitsBuilder::new().instances(1).memories(1).memory_size(bytes);
        let limits = limits.tables(1).table_elements(limit::TABLE).build();
        let fuel_of_memory = memory.div_ceil(BYTES_FOR_FUEL);
        let code = Self { linker: Linker::new(&engine), module, limits, fuel_of_memory };
        let (mut store, pre) = code.begin(0).map_err(|error| Error::Invalid(short(error)))?;
        match pre.ensure_no_start(&mut store) {
            Ok(_) => Ok(code),
            Err(InstantiationError::FoundStartFn { .. }) => Err(Error::Start),
            Err(error) => Err(Error::Invalid(short(error))),
        }
    }

    /// The stages at which a module has work, by what it exports.
    pub(crate) fn stages(&self) -> Result<Stages, Error> {
        for export in self.module.exports() {
            let name = export.name();
            match FUNCTIONS.iter().find(|known| known.name == name) {
                Some(known) if !is_of_type(export.ty(), known) => {
                    let wanted = if known.gives_number { "() -> i32" } else { "() -> ()" };
                    return Err(Error::Type { name: short(name), wanted });
                }
                None if name.starts_with(interface::PREFIX) => {
                    return Err(Error::Unknown(short(name)));
                }
                _ => {}
            }
        }
        let has = |name: &str| self.module.get_export(name).is_some();
        if let Some(lacks) = FUNCTIONS.iter().find(|known| !known.may_lack && !has(known.name)) {
            return Err(Error::Missing(lacks.name));
        }
        let [check, act, transform] =
            [interface::CHECK, interface::ACT, interface::TRANSFORM].map(has);
        if !(check || act || transform) {
            return Err(Error::Missing("balboa_check, balboa_act or balboa_transform"));
        }
        Ok(Stages { check, act, rewrites: false, transform })
    }

    fn begin(&self, fuel: u64) -> Result<(Store<StoreLimits>, wasmi::InstancePre), wasmi::Error> {
        let mut store = Store::new(self.module.engine(), self.limits.clone());
        store.limiter(|limits| limits);
        store.set_fuel(fuel)?;
        let pre = self.linker.instantiate(&mut store, &self.module)?;
        Ok((store, pre))
    }

    /// A new instance, which may use so much fuel, and pays for its memory first.
    pub(crate) fn instance(&self, fuel: u64) -> Result<Fresh, Failure> {
        let left = fuel.checked_sub(self.fuel_of_memory).ok_or(Failure::OutOfFuel)?;
        let (mut store, pre) = self.begin(left)?;
        let instance = pre.ensure_no_start(&mut store).map_err(wasmi::Error::from)?;
        let memory = instance.get_memory(&store, interface::MEMORY);
        let memory = memory.ok_or_else(|| Failure::Fault("its memory is gone".into()))?;
        Ok(Fresh { store, memory, instance, fuel })
    }
}

/// Whether an export is a function of that type.
fn is_of_type(found: &ExternType, known: &Function) -> bool {
    let ExternType::Func(found) = found else { return false };
    let results = if known.gives_number { &[wasmi::core::ValType::I32][..] } else { &[] };
    found.params().is_empty() && found.results() == results
}

/// The pages of a module's memory.
fn pages(module: &wasmi::Module) -> Result<u64, Error> {
    match module.get_export(interface::MEMORY) {
        Some(ExternType::Memory(memory)) if memory.minimum() <= limit::PAGES => {
            Ok(memory.minimum())
        }
        Some(ExternType::Memory(memory)) => Err(Error::Memory(memory.minimum())),
        Some(_) => Err(Error::Type { name: interface::MEMORY.to_owned(), wanted: "a memory" }),
        None => Err(Error::Missing(interface::MEMORY)),
    }
}

impl Fresh {
    /// Calls a function, once; the fuel that the instance has used, and what the function gave.
    pub(crate) fn call<R: WasmResults>(&mut self, function: &str) -> (u64, Result<R, Failure>) {
        let found: Result<TypedFunc<(), R>, _> =
            self.instance.get_typed_func(&self.store, function);
        let outcome = found.and_then(|function| function.call(&mut self.store, ()));
        let left = self.store.get_fuel().unwrap_or(0);
        (self.fuel.saturating_sub(left), outcome.map_err(Failure::from))
    }
}
