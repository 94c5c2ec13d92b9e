//! The programs that people run: the recipes of docs/applications.md and of the pages that belong to it are the cases.
//!
//! A recipe is a block of such a page, ```` ```sh NAME ````. Its first line is `# N cards, N MiB` (or KiB): how many cards
//! there are, of which each must be used, and how much they must have received; `, minutes` after it keeps the recipe out of
//! the test command. With `2 balboads` for the cards each has one, and a cable joins them. Its last lines, `# TEXT`, are
//! the required output of the last command. Between them are commands of a shell: those that end with `&` are waited
//! for until they listen, and must end well in the end; `kill $!` ends the last of them, which would not end by itself,
//! and `kill %N` the Nth that is left. `./NAME/` is the build of a suite of tests ([`SUITES`]), with a copy in the
//! directory that a recipe is run in. `$OTHER` is the state directory of the second balboad, or of the only one.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use harness::namespace::Namespace;
use harness::process::{Finished, PATH, Running, Task, last_lines};
use harness::runner::{Case, Need};
use harness::setting::{Daemon, Setting};
use harness::suites::{MPI, SUITES, Suite};
use nix::sys::signal::Signal;

use super::counters::went_through;
use super::rdmacm::nothing_left;

/// The pages of recipes.
const PAGES: [&str; 4] = [
    include_str!("../../../docs/applications.md"),
    include_str!("../../../docs/applications-mpi.md"),
    include_str!("../../../docs/applications-suites.md"),
    include_str!("../../../docs/applications-rfaas.md"),
];
/// The files in the directory in which recipes run.
const FILES: [(&str, &str); 2] = [MPI, ("rfaas.json", include_str!("../../scripts/rfaas.json"))];
/// How many lines of balboad's are shown where a recipe fails.
const LOG_LINES: usize = 20;
/// How long one command may take.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// The programs and files of the recipes, and the packages that they come with.
const PROGRAMS: &[(&str, &str)] = &[
    ("/usr/share/doc/libucx-dev/examples/ucp_client_server.c", "libucx-dev"),
    ("cc", "gcc"),
    ("fi_pingpong", "libfabric-bin"),
    ("mpicc.mpich", "libmpich-dev"),
    ("mpicc.openmpi", "libopenmpi-dev"),
    ("mpirun.mpich", "mpich"),
    ("mpirun.openmpi", "openmpi-bin"),
    ("ucx_info", "ucx-utils"),
    ("ucx_perftest", "ucx-utils"),
];

/// The recipe in a block of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Recipe {
    name: String,
    cards: u32,
    /// Each of the two cards has a balboad of its own, and a cable joins them.
    is_cabled: bool,
    /// The bytes that all cards must have received together; 0 if none need be used.
    bytes: u64,
    takes_minutes: bool,
    commands: Vec<String>,
    says: Vec<String>,
}

/// Those that take seconds, for the test command.
pub fn quick() -> Vec<Case> {
    recipes().into_iter().filter(|it| !it.takes_minutes).map(case).collect()
}

/// All of the pages.
pub fn all() -> Vec<Case> {
    recipes().into_iter().map(case).collect()
}

fn case(recipe: Recipe) -> Case {
    let mut needs = vec![Need::Program("unshare", "util-linux")];
    let words = || recipe.commands.iter().flat_map(|line| line.split_whitespace());
    let programs = PROGRAMS.iter().filter(|(program, _)| words().any(|word| word == *program));
    needs.extend(programs.map(|&(program, package)| {
        let need = if program.starts_with('/') { Need::File } else { Need::Program };
        need(program, package)
    }));
    needs.extend(recipe.suites().map(Need::Suite));
    Case::new(format!("apps/{}", recipe.name), &needs, move |setting| run(setting, &recipe))
}

impl Recipe {
    /// The suites of which it runs programs: those of `./osu/openmpi/osu_bw` are `osu`'s.
    fn suites(&self) -> impl Iterator<Item = &'static Suite> {
        SUITES.iter().filter(|suite| {
            let place = format!("./{}/", suite.name);
            self.commands.iter().any(|line| line.contains(&place))
        })
    }
}

fn recipes() -> Vec<Recipe> {
    // The test below finds malformed recipes, which are never run as others.
    let blocks = PAGES.into_iter().flat_map(blocks);
    blocks.filter_map(|(name, lines)| recipe(name, &lines).ok()).collect()
}

/// The blocks of a page that have a name, with their lines.
fn blocks(page: &str) -> Vec<(&str, Vec<String>)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("```sh ") else { continue };
        let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        // As the shell, which takes a line with the next where it ends with this.
        let text = text.join("\n").replace("\\\n", " ");
        blocks.push((name, text.lines().map(str::to_owned).collect()));
    }
    blocks
}

fn recipe(name: &str, lines: &[String]) -> Result<Recipe> {
    let comment = |line: &String| line.strip_prefix("# ").map(str::to_owned);
    let (first, rest) = lines.split_first().with_context(|| format!("{name} is empty"))?;
    let first = comment(first).with_context(|| format!("{name} does not begin with # N cards"))?;
    let count = rest.iter().position(|line| line.starts_with('#')).unwrap_or(rest.len());
    let (commands, says) = rest.split_at(count);
    let says: Option<Vec<_>> = says.iter().map(comment).collect();
    let cabled = first.strip_prefix("2 balboads, ").map(|rest| format!("2 cards, {rest}"));
    let is_cabled = cabled.is_some();
    let first = cabled.unwrap_or(first);
    let mut parts = first.split(", ");
    let mut number = |units: [(&str, u64); 2]| {
        let part = parts.next().unwrap_or_default();
        let number = units.iter().find_map(|(unit, factor)| {
            part.strip_suffix(unit)?.trim().parse::<u64>().ok()?.checked_mul(*factor)
        });
        number.with_context(|| format!("{name}: {part:?} is no number of {units:?}"))
    };
    let cards = number([("cards", 1), ("card", 1)])?;
    let bytes = number([("MiB", 1 << 20), ("KiB", 1 << 10)])?;
    let takes_minutes = match parts.next() {
        None => false,
        Some("minutes") => true,
        Some(other) => bail!("{name}: {other:?} is not \"minutes\""),
    };
    let says = says.filter(|says| !says.is_empty());
    Ok(Recipe {
        name: name.to_owned(),
        cards: u32::try_from(cards)?,
        is_cabled,
        bytes,
        takes_minutes,
        commands: commands.to_vec(),
        says: says.with_context(|| format!("{name} does not end with what it says"))?,
    })
}

fn run(setting: &Setting, recipe: &Recipe) -> Result<()> {
    let daemons = match recipe.is_cabled {
        true => setting.cabled_balboads()?.into(),
        false => vec![setting.balboad(&format!("--soft {}", recipe.cards))?],
    };
    commands(setting, recipe, &daemons).with_context(|| {
        let log: String = daemons.iter().map(Daemon::log).collect();
        format!("--- balboad said at the end\n{}", last_lines(&log, LOG_LINES).join("\n"))
    })?;
    daemons.into_iter().try_for_each(Daemon::stop)
}

/// Runs a recipe's commands beside balboad, and checks their output.
fn commands(setting: &Setting, recipe: &Recipe, daemons: &[Daemon<'_>]) -> Result<()> {
    let directory = |daemon: Option<&Daemon<'_>>| daemon.map(|it| it.state_dir().to_owned());
    let first = directory(daemons.first()).context("no balboad")?;
    let other = directory(daemons.last()).context("no balboad")?;
    let namespace = Namespace::new(setting, recipe.cards)?;
    for (name, text) in FILES {
        fs::write(setting.directory().join(name), text)?;
    }
    for suite in recipe.suites() {
        // Not every user can read where it lies, which may be a link.
        let built = suite.built().with_context(|| suite.missing())?;
        let copy = Task::new("cp").arg("-rH").arg(built).arg(setting.directory());
        copy.run()?.success()?;
    }
    let mut running: Vec<Option<Running>> = Vec::new();
    let mut last = None;
    for command in &recipe.commands {
        let shell = setting.task("sh").arg("-c");
        let start = |line: &str| {
            namespace
                .task(setting, &shell.clone().arg(line))
                .env("PATH", format!("{}:{PATH}", setting.bin.display()))
                .env(shim_abi::STATE_DIR_VARIABLE, &first)
                .env("OTHER", &other)
                .limit(LIMIT)
                // As if a user typed the page's lines, which matters to UCX.
                .at_terminal()
                .start()
        };
        if let Some(job) = command.strip_prefix("kill ") {
            let number = match job.strip_prefix('%') {
                Some(number) => number.parse()?,
                None => running.len(),
            };
            let server = running.get_mut(number.wrapping_sub(1)).and_then(Option::take);
            let server = server.context("there is nothing to kill")?;
            server.signal(Signal::SIGTERM)?;
            server.wait()?;
            // As a shell counts its jobs.
            running.truncate(running.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
            continue;
        }
        match command.strip_suffix('&') {
            Some(line) => {
                let known = listeners(&namespace, daemons)?;
                let mut server = start(line)?;
                server.wait_until("it listened", |_| {
                    listeners(&namespace, daemons).is_ok_and(|now| now > known)
                })?;
                running.push(Some(server));
            }
            None => last = Some(beside(&running, start(command)?)?),
        }
    }
    for server in running.into_iter().flatten() {
        server.wait()?.success()?;
    }
    let last = last.context("the recipe runs nothing to its end")?;
    for text in &recipe.says {
        let says = last.stdout.contains(text) || last.stderr.contains(text);
        ensure!(says, "expected {text:?}: {last}");
    }
    let of_each = usize::try_from(recipe.cards)? / daemons.len();
    went_through(daemons, of_each, recipe.bytes).with_context(|| format!("after {last}"))?;
    daemons.iter().try_for_each(nothing_left)
}

/// How many sockets and identifiers of rdma_cm's wait for connections.
fn listeners(namespace: &Namespace, daemons: &[Daemon<'_>]) -> Result<u64> {
    let mut count = namespace.listeners() as u64;
    for daemon in daemons {
        let status = daemon.status()?;
        count += status["connections"]["listeners"].as_u64().context("no listeners")?;
    }
    Ok(count)
}

/// Waits for the end of a command; if it fails, the error has the output of the others as well.
fn beside(others: &[Option<Running>], command: Running) -> Result<Finished> {
    let said = || {
        let said = others.iter().flatten().map(|it| format!("{}{}", it.output(), it.errors()));
        format!("--- what runs beside it said\n{}", said.collect::<String>())
    };
    command.wait().and_then(Finished::success).with_context(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recipe_of_the_pages_is_whole_and_runs_a_program_that_is_known() {
        let pages = PAGES.map(blocks);
        assert!(pages.iter().all(|blocks| blocks.len() > 1), "{pages:?}");
        for (name, lines) in pages.into_iter().flatten() {
            let recipe = recipe(name, &lines).unwrap();
            assert!(recipe.cards > 0, "{name}");
            let case = case(recipe);
            assert!(case.needs.len() > 1, "{name} runs none of PROGRAMS or SUITES");
        }
    }

    #[test]
    fn every_suite_has_a_recipe() {
        let recipes = recipes();
        for suite in &SUITES {
            let uses = |recipe: &Recipe| recipe.suites().any(|used| used == suite);
            assert!(recipes.iter().any(uses), "{suite:?}");
        }
    }

    #[test]
    fn a_recipe_is_read_as_it_says() {
        let page = "text\n```sh a/b\n# 2 cards, 16 MiB, minutes\nserve \\\n  it &\nask\n# done\n# well\n```\n```sh\nno\n```\n";
        let blocks = blocks(page);
        assert_eq!(blocks.len(), 1);
        let (name, lines) = &blocks[0];
        let expected = Recipe {
            name: "a/b".into(),
            cards: 2,
            is_cabled: false,
            bytes: 16 << 20,
            takes_minutes: true,
            commands: vec!["serve    it &".into(), "ask".into()],
            says: vec!["done".into(), "well".into()],
        };
        assert_eq!(recipe(name, lines).unwrap(), expected.clone());
        let cabled = Recipe { is_cabled: true, ..expected };
        let two = page.replace("2 cards", "2 balboads");
        assert_eq!(recipe(name, &super::blocks(&two)[0].1).unwrap(), cabled);
        let few = page.replace("16 MiB", "3 KiB");
        assert_eq!(recipe(name, &super::blocks(&few)[0].1).unwrap().bytes, 3 << 10);
        for wrong in [&lines[1..], &lines[..3], &[]] {
            assert!(recipe(name, wrong).is_err(), "{wrong:?}");
        }
    }
}
