//! Unmodified programs whose connections are intercepted.

use anyhow::{Result, ensure};
use multiway_linksim::ServerSpec;
use multiway_netlab::skip_without_lab;

use crate::support::{FAST, World, output, same, skip_without_programs, wifi_and_lte};

const FILE: &str = "4MB.bin";

fn origin() -> ServerSpec {
    ServerSpec::new("origin").file(FILE, 4_000_000).file("small.bin", 20_000)
}

#[test]
fn curl_under_run_gets_its_file_over_both_paths() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    let world = World::with_daemon(&wifi_and_lte(origin()))?;
    let url = world.network.server("origin").url(FILE);
    let found = output(world.intercepted("curl").args(["-sSf", &url]))?;
    same(&found, &world.content(FILE))?;
    world.each_path_carried(800_000)
}

#[test]
fn curl_of_an_intercepted_user_gets_its_file_over_both_paths() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl", "setpriv");
    let mut world = World::build(&wifi_and_lte(origin()))?;
    world.start_daemon(FAST, &["--intercept-user", "65534"])?;
    let url = world.network.server("origin").url(FILE);
    let found = output(world.as_nobody("curl").args(["-sSf", &url]))?;
    same(&found, &world.content(FILE))?;
    world.each_path_carried(800_000)
}

#[test]
fn wget_saves_its_file_over_both_paths() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("wget");
    let world = World::with_daemon(&wifi_and_lte(origin()))?;
    output(world.intercepted("wget").args(["-nv", "http://files.example/4MB.bin"]))?;
    same(&world.read(FILE)?, &world.content(FILE))?;
    world.each_path_carried(800_000)
}

#[test]
fn a_python_client_reuses_its_connection() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("python3");
    let world = World::with_daemon(&wifi_and_lte(origin()))?;
    let script = r#"
import http.client, sys
connection = http.client.HTTPConnection("files.example")
for name in ["small.bin", "4MB.bin", "missing", "small.bin", "4MB.bin"]:
    connection.request("GET", "/" + name)
    socket = connection.sock
    answer = connection.getresponse()
    body = answer.read()
    assert connection.sock is socket, "the connection was not kept"
    if answer.status == 200:
        sys.stdout.buffer.write(body)
    else:
        assert answer.status == 404, answer.status
"#;
    let found = output(world.intercepted("python3").args(["-c", script]))?;
    let (small, large) = (world.content("small.bin"), world.content(FILE));
    same(&found, &[&small[..], &large, &small, &large].concat())?;
    world.each_path_carried(1_600_000)
}

#[test]
fn a_python_client_that_closes_after_its_answer_still_gets_both_paths() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("python3");
    let world = World::with_daemon(&wifi_and_lte(origin()))?;
    let script = "import sys, urllib.request as u; \
                  sys.stdout.buffer.write(u.urlopen('http://files.example/4MB.bin').read())";
    let found = output(world.intercepted("python3").args(["-c", script]))?;
    same(&found, &world.content(FILE))?;
    world.each_path_carried(800_000)
}

#[test]
fn ffmpeg_seeks_in_a_film_and_sees_the_same_frames() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("ffmpeg");
    let world = World::with_daemon(&wifi_and_lte(origin()))?;
    let server = world.network.server("origin");
    let film = server.nginx().expect("it has files").root().join("film.mp4");
    // Noise does not compress; the index comes last, as cameras write it.
    output(world.command("ffmpeg").args(["-v", "error", "-f", "lavfi", "-i"]).args([
        "testsrc=size=320x240:rate=25,noise=alls=60:allf=t",
        "-t",
        "10",
        "-c:v",
        "mpeg4",
        "-q:v",
        "6",
        film.to_str().expect("UTF-8"),
    ]))?;
    ensure!(film.metadata()?.len() > 2_000_000, "the film is small: {}", film.metadata()?.len());
    let frames = |command: &mut std::process::Command, input: &str| {
        output(command.args(["-v", "error", "-i", input, "-f", "framemd5", "-"]))
    };
    let expected = frames(&mut world.command("ffmpeg"), film.to_str().expect("UTF-8"))?;
    let found = frames(&mut world.intercepted("ffmpeg"), &server.url("film.mp4"))?;
    ensure!(found == expected, "the frames differ");
    let requests = server.nginx().expect("it has files").requests()?;
    let seeks =
        requests.iter().filter(|request| request.line.contains("film.mp4") && request.range.is_some());
    ensure!(seeks.count() >= 2, "{requests:?}");
    world.each_path_carried(300_000)
}

#[test]
fn apt_get_downloads_a_package_over_both_paths() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("apt-get", "dpkg-deb", "dpkg-scanpackages");
    let world = World::with_daemon(&wifi_and_lte(origin()))?;
    let root = world.network.server("origin").nginx().expect("it has files").root();
    let package = world.path("package");
    std::fs::create_dir_all(package.join("DEBIAN"))?;
    std::fs::write(
        package.join("DEBIAN/control"),
        "Package: large\nVersion: 1\nArchitecture: all\nMaintainer: Lab <lab@files.example>\nDescription: large\n",
    )?;
    std::fs::write(package.join("data"), world.content(FILE))?;
    let deb = root.join("large_1_all.deb");
    output(world.command("dpkg-deb").args(["-Znone", "-b", "package"]).arg(&deb))?;
    let index = output(world.command("dpkg-scanpackages").args(["-m", "."]).current_dir(&root))?;
    std::fs::write(root.join("Packages"), index)?;

    for directory in ["apt/lists/partial", "apt/cache/archives/partial", "apt/etc"] {
        std::fs::create_dir_all(world.path(directory))?;
    }
    std::fs::write(world.path("apt/sources.list"), "deb [trusted=yes] http://files.example ./\n")?;
    std::fs::write(world.path("apt/status"), "")?;
    let at = |name: &str| world.path(name).display().to_string();
    let configuration = format!(
        "Dir::Etc \"{}\";\nDir::Etc::SourceList \"{}\";\nDir::Etc::SourceParts \"-\";\nDir::State \"{}\";\n\
         Dir::State::Lists \"{}\";\nDir::State::status \"{}\";\nDir::Cache \"{}\";\nAPT::Sandbox::User \"root\";\n\
         Acquire::Languages \"none\";\n",
        at("apt/etc"),
        at("apt/sources.list"),
        at("apt"),
        at("apt/lists"),
        at("apt/status"),
        at("apt/cache")
    );
    std::fs::write(world.path("apt.conf"), configuration)?;
    for arguments in [["update", "-q"], ["download", "large"]] {
        output(world.intercepted("apt-get").args(arguments).env("APT_CONFIG", world.path("apt.conf")))?;
    }
    same(&world.read("large_1_all.deb")?, &std::fs::read(&deb)?)?;
    world.each_path_carried(800_000)
}

#[test]
fn git_clones_by_plain_http() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("git");
    let world = World::with_daemon(&wifi_and_lte(origin()))?;
    let root = world.network.server("origin").nginx().expect("it has files").root();
    std::fs::create_dir(world.path("source"))?;
    std::fs::write(world.path("source/data"), world.content(FILE))?;
    let script = "cd source && git init -q && git add data && \
                  git -c user.name=Lab -c user.email=lab@files.example commit -qm data && cd .. && \
                  git clone -q --bare source \"$ROOT/source.git\" && cd \"$ROOT/source.git\" && git update-server-info";
    output(world.command("sh").args(["-ec", script]).env("ROOT", &root))?;
    output(world.intercepted("git").args(["clone", "-q", "http://files.example/source.git", "copy"]))?;
    same(&world.read("copy/data")?, &world.content(FILE))?;
    world.each_path_carried(500_000)
}
