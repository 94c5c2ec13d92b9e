//! A verbs program that checks the data it moves between two cards, or on one.

#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use verbs_programs::data::{
    self,
    apart::Wishes,
    link::{DEPTH, Options},
    memory::{DmaBufIs, Tried},
    nccl,
    their_stack::Theirs,
};
use verbs_programs::ffi::{Context, EVERYTHING, Library, Operation, Patience, Service};

/// Moves messages between two QPs and checks every byte.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the devices and their limits
    List,
    /// Move messages of every operation and size at every path MTU
    Sweep {
        /// Move messages of these sizes alone, in bytes
        #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(..=1 << 20))]
        sizes: Vec<u32>,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Post lists of work requests
    Lists(Endpoints),
    /// Cause every error, and check its status
    Errors {
        /// Expect cards that pin registered memory
        #[arg(long)]
        pinned: bool,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Pass forbidden arguments, and check the refusals
    Arguments(Endpoints),
    /// Call functions that the cards do not offer, and check the refusals; print each call to standard error first
    Refusals(Endpoints),
    /// Change registrations while they are used
    Rereg(Endpoints),
    /// Send with and without flow labels, by connections and datagrams, and print each flow
    Flows(Endpoints),
    /// Move bytes of every kind of memory, registered in every way
    Memory {
        /// Expect cards that pin registered memory, and so keep pages that a program replaces
        #[arg(long)]
        pinned: bool,
        /// Expect that the host copies for such cards, from and to the present pages
        #[arg(long)]
        copied: bool,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Receive on several connections from one queue
    Shared(Endpoints),
    /// Move messages on many connections at once
    Many {
        /// Number of connections, of two QPs each
        #[arg(long)]
        pairs: usize,
        /// Messages on each connection
        #[arg(long, default_value_t = 2)]
        rounds: u32,
        /// Receive from one shared queue
        #[arg(long)]
        shared: bool,
        /// Send once this file exists
        #[arg(long)]
        go: Option<PathBuf>,
        /// Stay until the process is killed
        #[arg(long)]
        stay: bool,
        /// Connect and disconnect by librdmacm; the receiving side listens at this port
        #[arg(long, value_name = "PORT")]
        managed: Option<u16>,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Check the operations that published cards carry without the tunnel, and those that they refuse
    Published(Endpoints),
    /// Move WRITEs and READs between a card and the published card's stack, its authors' code, over UDP
    TheirStack {
        /// The address that it has
        #[arg(long)]
        address: Ipv4Addr,
        /// The code's program
        #[arg(long)]
        program: PathBuf,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Make as many QPs as both devices allow, and one more of each
    Fill(Endpoints),
    /// Share XRC domains, their queues and targets between contexts
    Xrc {
        /// Expect a cable that loses frames, and so refusals, which are not repeated
        #[arg(long)]
        bad_cable: bool,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Count in the same words by atomics on many connections
    Counter(Endpoints),
    /// Check the results and the refusals of the extended verbs
    Extended(Endpoints),
    /// Take the ports off their cables and put them back, under messages
    Links {
        /// The program `balboa`
        #[arg(long)]
        balboa: PathBuf,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Destroy address handles as soon as a request is posted with them
    Handles(Endpoints),
    /// Cancel threads while they wait for events
    Cancel {
        /// Device
        #[arg(long, default_value = "balboa0")]
        device: String,
    },
    /// Move messages from and to device memory
    DeviceMemory(Endpoints),
    /// Move messages from and to null memory regions
    NullRegions(Endpoints),
    /// Resize completion queues while messages complete on them
    Resize(Endpoints),
    /// Use completion queues of every vector, and flood one with events
    Vectors(Endpoints),
    /// Add addresses to the ports and delete them, and connect by them
    Addresses {
        /// The program `balboa`
        #[arg(long)]
        balboa: PathBuf,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Attach a service that makes features of rows, and move rows through it
    Rows {
        /// The program `balboa`
        #[arg(long)]
        balboa: PathBuf,
        /// The service: preprocess, or rows, which has to be loaded
        #[arg(long, default_value = "preprocess")]
        service: String,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Attach services, replace and detach them, while tables are under way
    Tended {
        /// The program `balboa`
        #[arg(long)]
        balboa: PathBuf,
        /// How often
        #[arg(long, default_value_t = 25)]
        rounds: usize,
        /// Files of the services rows and passes, which are loaded and unloaded in each round
        #[arg(long, num_args = 2)]
        modules: Vec<String>,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Attach the service that looks for patterns, and move messages with and without them
    Inspected {
        /// The program `balboa`
        #[arg(long)]
        balboa: PathBuf,
        /// Expect a cable that loses frames, and so refusals, which are not repeated
        #[arg(long)]
        bad_cable: bool,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Attach the service that looks for machine code, and move messages with and without it
    Classified {
        /// The program `balboa`
        #[arg(long)]
        balboa: PathBuf,
        /// Expect a cable that loses frames, and so refusals, which are not repeated
        #[arg(long)]
        bad_cable: bool,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Train a small model with a table that is READ from the other device, whose rows the program makes features of, and
    /// then the service, and print the program's processor time for both
    Training {
        /// The program `balboa`
        #[arg(long)]
        balboa: PathBuf,
        /// Passes over the table
        #[arg(long, default_value_t = 10)]
        passes: usize,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Access a page while it is registered, and afterwards
    Reach {
        /// Number of accesses before and after
        #[arg(long, default_value_t = 1000)]
        tries: u64,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Deregister memory during transfers, in every way, and check that nothing reaches it afterwards
    Races {
        /// Number of races in each way
        #[arg(long, default_value_t = 100)]
        tries: u64,
        /// Use only WRITEs and READs, and no windows: published cards offer no more
        #[arg(long)]
        one_sided: bool,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Hold queue pairs to rates, and check that they are no faster
    Rates(Endpoints),
    /// Send to queue pairs that are not ready, and check that others go on
    Strays(Endpoints),
    /// Unmap or deregister the memory of long messages while they move
    Grants {
        /// Move only one message, of memory whose page faults stay unanswered, by this device node of userfaultfd
        #[arg(long)]
        silent: Option<PathBuf>,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Unmap memory in a card's IOMMU while its key stays valid, and access it
    Unmapped {
        /// The file with the card's address of the memory
        place: PathBuf,
        /// Number of accesses before and after
        #[arg(long, default_value_t = 20)]
        tries: u64,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Drain, break and reuse QPs, connect them to themselves, and post fences
    States {
        /// Expect cards that offer Reliable Connection alone
        #[arg(long)]
        reliable_only: bool,
        #[command(flatten)]
        link: Endpoints,
    },
    /// Send datagrams to multicast groups, from one device to all
    Multicast {
        /// Expect cables that lose datagrams
        #[arg(long)]
        bad: bool,
    },
    /// Send datagrams to multicast groups both ways between this process and another, which runs the same on
    /// another device: one listens, the other connects to its host
    MulticastApart {
        /// Device
        #[arg(short, long, default_value = "balboa0")]
        device: String,
        /// TCP port
        #[arg(short, long)]
        port: u16,
        /// Let the kernel receive the groups' packets on this network device
        #[arg(long)]
        join: Option<String>,
        /// Join as many groups as a program may, afterwards
        #[arg(long)]
        all_groups: bool,
        /// The host on which the other process listens
        host: Option<String>,
    },
    /// Move messages of every kind both ways between this process and another, which runs the same on
    /// another device: one listens, the other connects to its host
    Apart {
        /// Device
        #[arg(short, long, default_value = "balboa0")]
        device: String,
        /// TCP port
        #[arg(short, long)]
        port: u16,
        /// Local ACK timeout, 4.096 µs × 2^N
        #[arg(long, value_name = "N", default_value_t = 14)]
        timeout: u8,
        /// The QPs' transport service
        #[arg(long, default_value = "rc")]
        service: Transport,
        /// GID index
        #[arg(long, default_value_t = 1)]
        gid: u8,
        /// Name no key in READs of 0 bytes, which need none
        #[arg(long)]
        keyless_empty_reads: bool,
        /// Expect a cable that loses frames, and so messages of UC and UD
        #[arg(long)]
        bad_cable: bool,
        /// Post WRITEs and READs alone, in the process that connects
        #[arg(long)]
        one_sided: bool,
        /// Expect acknowledgements of WRITEs before their bytes are placed
        #[arg(long)]
        late: bool,
        /// The host on which the other process listens
        host: Option<String>,
    },
    /// Send NCCL's pattern both ways between this process and another, which runs the same on another device: one
    /// listens, the other connects to its host
    Nccl {
        /// Device
        #[arg(short, long, default_value = "balboa0")]
        device: String,
        /// TCP port
        #[arg(short, long)]
        port: u16,
        /// Queue pairs to send by, and as many to receive by
        #[arg(long, default_value_t = 4)]
        qps: usize,
        /// MiB of the longest message
        #[arg(long, default_value_t = 64)]
        mib: u16,
        /// Local ACK timeout, 4.096 µs × 2^N
        #[arg(long, value_name = "N", default_value_t = 20)]
        timeout: u8,
        /// Use a GID of IPv6
        #[arg(long)]
        ipv6: bool,
        /// Use a GID of this network
        #[arg(long, value_name = "ADDRESS/BITS", value_parser = network)]
        network: Option<(IpAddr, u8)>,
        /// Expect a cable that loses frames, and so refusals, which are not repeated
        #[arg(long)]
        bad_cable: bool,
        /// The host on which the other process listens
        host: Option<String>,
    },
    /// Move one long message
    Huge {
        /// The operation that moves it
        operation: Transfer,
        /// Length in MiB
        #[arg(long, default_value_t = 1024)]
        mib: u16,
        /// Path MTU in bytes
        #[arg(long, default_value = "4096")]
        mtu: Mtu,
        #[command(flatten)]
        link: Endpoints,
    },
}

#[derive(Debug, Args)]
struct Endpoints {
    /// The device that sends, writes and reads
    #[arg(long, default_value = "balboa0")]
    from: String,
    /// The device that receives, and whose memory is written and read
    #[arg(long, default_value = "balboa1")]
    to: String,
    /// GID index
    #[arg(long, default_value_t = 1)]
    gid: u8,
    /// Wait on completion channels instead of polling
    #[arg(long)]
    events: bool,
    /// Make the queues in a thread domain
    #[arg(long)]
    thread_domain: bool,
    /// Post and poll by the extended functions
    #[arg(long)]
    extended: bool,
    /// Use Unreliable Connection; a sweep then has no WRITE without immediate data, and no READ
    #[arg(long, conflicts_with = "extended")]
    unreliable: bool,
    /// Local ACK timeout, 4.096 µs × 2^N
    #[arg(long, value_name = "N", default_value_t = 14)]
    timeout: u8,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mtu {
    #[value(name = "256")]
    Of256,
    #[value(name = "512")]
    Of512,
    #[value(name = "1024")]
    Of1024,
    #[value(name = "2048")]
    Of2048,
    #[value(name = "4096")]
    Of4096,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transport {
    Rc,
    Uc,
    Ud,
}

impl From<Transport> for Service {
    fn from(kind: Transport) -> Self {
        match kind {
            Transport::Rc => Self::Reliable,
            Transport::Uc => Self::Unreliable,
            Transport::Ud => Self::Datagram,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transfer {
    Send,
    SendImmediate,
    Write,
    WriteImmediate,
    Read,
}

impl From<&Endpoints> for Options {
    fn from(link: &Endpoints) -> Self {
        Self {
            devices: [link.from.clone(), link.to.clone()],
            gid_index: link.gid,
            events: link.events,
            thread_domain: link.thread_domain,
            extended: link.extended.then_some(EVERYTHING),
            service: if link.unreliable { Service::Unreliable } else { Service::Reliable },
            cq_entries: 2 * DEPTH,
            patience: Patience { timeout: link.timeout, ..Patience::default() },
        }
    }
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::List => list()?,
        Command::Sweep { sizes, link } => {
            let sizes: Vec<usize> = sizes.into_iter().map(|size| size as usize).collect();
            println!("{} messages arrived as they should", data::sweep(&(&link).into(), &sizes)?);
        }
        Command::Lists(link) => {
            println!("{} listed messages arrived as they should", data::lists(&(&link).into())?);
        }
        Command::Errors { pinned, link } => {
            let errors = data::errors::all(&(&link).into(), pinned)?;
            println!("{errors} errors came as they should");
        }
        Command::Arguments(link) => {
            let count = data::arguments::all(&(&link).into())?;
            println!("{count} calls were taken or refused as they should be");
        }
        Command::Refusals(link) => {
            let tell = |call: &str, argument: &str| eprintln!("call {call}: {argument}");
            let count = data::refusals::all(&(&link).into(), tell)?;
            println!("{count} calls were refused as they should be");
        }
        Command::Rereg(link) => {
            println!(
                "{} changes of a region were made or refused",
                data::rereg::all(&(&link).into())?
            );
        }
        Command::Flows(link) => {
            let count = data::flows::all(&(&link).into(), |flow| println!("{flow}"))?;
            println!("{count} flows arrived");
        }
        Command::Memory { pinned, copied, link } => {
            let tried = data::memory::all(&(&link).into(), pinned, copied)?;
            let Tried { regions, huge, dma_buf } = tried;
            let huge = if huge { "one" } else { "none" };
            let dma_buf = match dma_buf {
                DmaBufIs::Reached => "one a dma-buf",
                DmaBufIs::Refused => "a dma-buf was refused, for this kernel shares no pages of it",
                DmaBufIs::Missing => "this kernel makes no dma-buf",
            };
            println!("bytes moved in {regions} regions, {huge} of them of huge pages; {dma_buf}");
        }
        Command::Shared(link) => {
            println!("{} shared messages arrived", data::shared::all(&(&link).into())?);
        }
        Command::Many { pairs, rounds, shared, go, stay, managed, link } => {
            let wishes = data::many::Wishes { pairs, rounds, shared, go, stay, managed };
            let count = data::many::all(&(&link).into(), &wishes)?;
            println!("{count} messages arrived on {pairs} connections");
        }
        Command::Published(link) => {
            let (arrived, refused) = data::published::all(&(&link).into())?;
            println!("{arrived} messages arrived whole, {refused} things were refused");
        }
        Command::TheirStack { address, program, link } => {
            let theirs = Theirs { address, program };
            let count = data::their_stack::all(&(&link).into(), &theirs)?;
            println!("{count} messages arrived as they should");
        }
        Command::Fill(link) => {
            data::many::fill(&(&link).into())?;
            println!("of {} and {} are all QPs that they say", link.from, link.to);
        }
        Command::Xrc { bad_cable, link } => {
            let count = data::xrc::all(&(&link).into(), bad_cable)?;
            println!("{count} XRC messages arrived");
        }
        Command::Counter(link) => {
            println!("{} atomics counted once", data::counter::all(&(&link).into())?);
        }
        Command::Handles(link) => {
            println!("{} datagrams arrived in order", data::handles::all(&(&link).into())?);
        }
        Command::Cancel { device } => {
            println!("{} threads were cancelled", data::cancel::all(&device)?);
        }
        Command::DeviceMemory(link) => {
            let count = data::device_memory::all(&(&link).into())?;
            println!("{count} messages of device memory arrived");
        }
        Command::NullRegions(link) => {
            let count = data::null::all(&(&link).into())?;
            println!("{count} messages of null regions arrived");
        }
        Command::Resize(link) => {
            println!("{} messages arrived around resizes", data::resize::all(&(&link).into())?);
        }
        Command::Vectors(link) => {
            let count = data::vectors::all(&(&link).into())?;
            println!("{count} completions were told of, each on its vector");
        }
        Command::Extended(link) => {
            data::extended::all(&(&link).into())?;
            println!("the extended verbs do what they should");
        }
        Command::Links { balboa, link } => {
            data::port::links(&(&link).into(), &balboa)?;
            println!("links went down and came back");
        }
        Command::Addresses { balboa, link } => {
            data::port::addresses(&(&link).into(), &balboa)?;
            println!("addresses came and went");
        }
        Command::Rows { balboa, service, link } => {
            let count = data::rows::all(&(&link).into(), &balboa, &service)?;
            println!("{count} tables arrived as they should");
        }
        Command::Tended { balboa, rounds, modules, link } => {
            let modules = match &*modules {
                [rows, passes] => Some([&**rows, &**passes]),
                _ => None,
            };
            let count = data::tended::all(&(&link).into(), &balboa, rounds, modules)?;
            println!("{count} tables arrived whole around {rounds} rounds of services");
        }
        Command::Inspected { balboa, bad_cable, link } => {
            let count = data::inspected::all(&(&link).into(), &balboa, bad_cable)?;
            println!("{count} messages were let pass, counted or refused as they should");
        }
        Command::Classified { balboa, bad_cable, link } => {
            let count = data::classified::all(&(&link).into(), &balboa, bad_cable)?;
            println!("{count} messages were let pass or refused as they should");
        }
        Command::Training { balboa, passes, link } => {
            let [host, service] = data::training::all(&(&link).into(), &balboa, passes)?;
            for (who, learned) in [("the program", host), ("the service", service)] {
                let (time, loss) = (learned.time, learned.loss);
                println!(
                    "{who} makes features: {time:?} of this program for a batch, loss {loss:.4}"
                );
            }
            let saved = 1.0 - service.time.as_secs_f64() / host.time.as_secs_f64();
            println!("{:.0} % of the program's processor time saved", 100.0 * saved);
        }
        Command::Reach { tries, link } => {
            let [before, after] = data::reach::registered(&(&link).into(), tries)?;
            println!("reached in {before} of {tries} before and in {after} of {tries} after");
        }
        Command::Races { tries, one_sided, link } => {
            let told = data::races::all(&(&link).into(), tries, one_sided)?;
            println!("nothing came behind the end of memory in {} races: {told}", told.all());
        }
        Command::Rates(link) => {
            let count = data::rates::all(&(&link).into())?;
            println!("{count} messages were no faster than they may be");
        }
        Command::Strays(link) => {
            let count = data::strays::all(&(&link).into())?;
            println!("{count} strays failed and harmed nobody");
        }
        Command::Grants { silent: Some(node), link } => {
            data::grants::silent(&(&link).into(), &node)?;
            println!("what does not answer is not sent");
        }
        Command::Grants { silent: None, link } => {
            let count = data::grants::all(&(&link).into())?;
            println!("{count} long messages went by the book");
        }
        Command::Unmapped { place, tries, link } => {
            let [before, after] = data::reach::unmapped(&(&link).into(), &place, tries)?;
            println!("reached in {before} of {tries} before and in {after} of {tries} after");
        }
        Command::Apart {
            device,
            port,
            timeout,
            service,
            gid,
            keyless_empty_reads,
            bad_cable,
            one_sided,
            late,
            host,
        } => {
            let options = Options {
                devices: [device.clone(), device],
                gid_index: gid,
                events: true,
                thread_domain: false,
                extended: None,
                service: service.into(),
                cq_entries: 2 * DEPTH,
                patience: Patience { timeout, ..Patience::default() },
            };
            let mislabels = options.devices[0].starts_with("rxe");
            let keyless = keyless_empty_reads;
            let wishes = Wishes { keyless, bad_cable, mislabels, one_sided, late };
            let done = data::apart::run(&options, host.as_deref(), port, wishes)?;
            println!("{} messages arrived as they should", done.messages);
            if done.atomics > 0 {
                println!("{} atomics counted once", done.atomics);
            }
            if done.keys > 0 {
                println!("{} keys were taken back", done.keys);
            }
        }
        Command::States { reliable_only, link } => {
            let count = data::states::all(&(&link).into(), reliable_only)?;
            println!("{count} states were as they should");
        }
        Command::Multicast { bad } => {
            println!("{} copies arrived in their groups", data::multicast::all(bad)?);
        }
        Command::MulticastApart { device, port, join, all_groups, host } => {
            let (host, join) = (host.as_deref(), join.as_deref());
            let count = data::multicast::apart(&device, host, port, join)?;
            println!("{count} copies arrived in their groups");
            if all_groups {
                println!("{} groups and no more", data::multicast::all_groups(&device)?);
            }
        }
        Command::Nccl { device, port, qps, mib, timeout, ipv6, network, bad_cable, host } => {
            let (gid, long) = (nccl::Wanted { ipv6, network }, usize::from(mib) << 20);
            let wishes = nccl::Wishes { device, gid, qps, long, timeout, bad_cable };
            let count = nccl::run(&wishes, host.as_deref(), port)?;
            println!("{count} messages arrived as NCCL's do");
        }
        Command::Huge { operation, mib, mtu, link } => {
            let operation = match operation {
                Transfer::Send => Operation::Send,
                Transfer::SendImmediate => Operation::SendImmediate,
                Transfer::Write => Operation::Write,
                Transfer::WriteImmediate => Operation::WriteImmediate,
                Transfer::Read => Operation::Read,
            };
            let mtu = data::MTUS[mtu as usize];
            data::huge(&(&link).into(), operation, usize::from(mib) << 20, mtu)?;
            println!("{mib} MiB arrived as they should");
        }
    }
    Ok(())
}

/// An address and how many of its bits count.
fn network(text: &str) -> Result<(IpAddr, u8), String> {
    let parts = text.split_once('/');
    let told = parts.and_then(|(address, bits)| Some((address.parse().ok()?, bits.parse().ok()?)));
    told.ok_or_else(|| "write an address and a number, such as 10.77.0.0/16".to_owned())
}

fn list() -> anyhow::Result<()> {
    let library = Library::open()?;
    for name in Context::names(library)? {
        let context = Context::open(library, &name)?;
        let (device, port) = (context.attributes()?, context.port()?);
        println!(
            "{name}: max_qp {}, max_sge {}, max_mr_size {}, max_msg_sz {}, gid_tbl_len {}",
            device.max_qp, device.max_sge, device.max_mr_size, port.max_msg_sz, port.gid_tbl_len
        );
    }
    Ok(())
}
