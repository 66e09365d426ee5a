//! What NetworkManager knows of interfaces, over D-Bus.
//!
//! It is asked, never waited for: without a bus, without NetworkManager, or with one that does not
//! answer in time, interfaces are described by the kernel's facts alone.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use multiway_core::paths::PathKind;
use zbus::{Connection, OwnedObjectPath, OwnedVariant, connection};

use super::assemble::Hints;
use super::tables::{Link, hardware_address};

/// Longest wait for all answers together; a few milliseconds is usual.
const PATIENCE: Duration = Duration::from_secs(1);

/// Longest wait for one answer.
const ANSWER_TIME: Duration = Duration::from_millis(300);

/// Where the system bus listens unless `DBUS_SYSTEM_BUS_ADDRESS` says otherwise (D-Bus
/// specification, "System message bus"), as all distributions have it today.
const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";

const SERVICE: &str = "org.freedesktop.NetworkManager";
const ROOT: &str = "/org/freedesktop/NetworkManager";
const DEVICE: &str = "org.freedesktop.NetworkManager.Device";
const WIRELESS: &str = "org.freedesktop.NetworkManager.Device.Wireless";
const ACCESS_POINT: &str = "org.freedesktop.NetworkManager.AccessPoint";
const IP4_CONFIG: &str = "org.freedesktop.NetworkManager.IP4Config";
const IP6_CONFIG: &str = "org.freedesktop.NetworkManager.IP6Config";

type Properties = HashMap<String, OwnedVariant>;

/// How an attempt to ask ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// By link index; links that are not managed are absent.
    Hints(BTreeMap<u32, Hints>),
    /// There is no bus or no NetworkManager on it.
    Absent,
    /// It was there and did not answer in time.
    Silent,
}

/// Asks the system bus's NetworkManager about the links.
pub(crate) fn ask(links: &[Link]) -> Answer {
    if std::env::var_os("DBUS_SYSTEM_BUS_ADDRESS").is_none() && !Path::new(SYSTEM_BUS).exists() {
        return Answer::Absent;
    }
    let links = links.to_vec();
    let (sender, receiver) = mpsc::channel();
    // A thread of its own, because the bus's handshake has no time limit and because the caller
    // may be inside an asynchronous runtime, where the bus library must not block.
    let asked = std::thread::Builder::new().name("network-manager".to_owned()).spawn(move || {
        let hints = zbus::block_on(async {
            let bus = connection::Builder::system().method_timeout(ANSWER_TIME).build().await?;
            if !is_running(&bus).await? {
                return Ok(None);
            }
            query(&bus, &links).await.map(Some)
        });
        // Nobody listens any more after the deadline.
        let _ = sender.send(hints);
    });
    if asked.is_err() {
        return Answer::Silent;
    }
    match receiver.recv_timeout(PATIENCE) {
        Ok(Ok(Some(hints))) => Answer::Hints(hints),
        Ok(Ok(None)) => Answer::Absent,
        Ok(Err(error)) => {
            let error: zbus::Error = error;
            tracing::debug!(%error, "NetworkManager could not be asked");
            Answer::Absent
        }
        Err(_) => Answer::Silent,
    }
}

/// Asked of the bus, because a call to NetworkManager itself might start it.
async fn is_running(bus: &Connection) -> zbus::Result<bool> {
    let reply = bus
        .call_method(
            Some("org.freedesktop.DBus"),
            "/org/freedesktop/DBus",
            Some("org.freedesktop.DBus"),
            "NameHasOwner",
            &SERVICE,
        )
        .await?;
    reply.body().deserialize()
}

async fn query(bus: &Connection, links: &[Link]) -> zbus::Result<BTreeMap<u32, Hints>> {
    let mut found = BTreeMap::new();
    for link in links.iter().filter(|link| !link.is_loopback && !link.is_plumbing) {
        match device_hints(bus, link).await {
            Ok(hints) => {
                found.extend(hints.map(|hints| (link.index, hints)));
            }
            // A device that NetworkManager does not know, or that vanished while asked about.
            Err(zbus::Error::MethodError(..) | zbus::Error::FDO(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

async fn device_hints(bus: &Connection, link: &Link) -> zbus::Result<Option<Hints>> {
    let reply = bus
        .call_method(Some(SERVICE), ROOT, Some(SERVICE), "GetDeviceByIpIface", &link.name.as_str())
        .await?;
    let device: OwnedObjectPath = reply.body().deserialize()?;
    let mut properties = properties(bus, &device, DEVICE).await?;

    // Devices of one name in two network namespaces differ in their hardware addresses.
    let hardware: String = take(&mut properties, "HwAddress").unwrap_or_default();
    let own = hardware_address(&link.hardware_address);
    if !hardware.is_empty() && !own.is_empty() && !hardware.eq_ignore_ascii_case(&own) {
        return Ok(None);
    }
    let kind = take(&mut properties, "DeviceType").and_then(kind);
    let wifi_name = match kind {
        Some(PathKind::Wifi) => wifi_name(bus, &device).await?,
        _ => None,
    };
    let mut dns_servers = Vec::new();
    for (property, interface) in [("Ip4Config", IP4_CONFIG), ("Ip6Config", IP6_CONFIG)] {
        if let Some(config) = take(&mut properties, property).and_then(existing) {
            dns_servers.extend(name_servers(bus, &config, interface).await?);
        }
    }
    let metered = take(&mut properties, "Metered").and_then(metered);
    Ok(Some(Hints { kind, metered, wifi_name, dns_servers }))
}

async fn wifi_name(bus: &Connection, device: &OwnedObjectPath) -> zbus::Result<Option<String>> {
    let mut wireless = properties(bus, device, WIRELESS).await?;
    let Some(access_point) = take(&mut wireless, "ActiveAccessPoint").and_then(existing) else {
        return Ok(None);
    };
    let mut access_point = properties(bus, &access_point, ACCESS_POINT).await?;
    let ssid: Option<Vec<u8>> = take(&mut access_point, "Ssid");
    Ok(ssid.filter(|ssid| !ssid.is_empty()).map(|ssid| String::from_utf8_lossy(&ssid).into_owned()))
}

async fn name_servers(
    bus: &Connection,
    config: &OwnedObjectPath,
    interface: &str,
) -> zbus::Result<Vec<IpAddr>> {
    let mut config = properties(bus, config, interface).await?;
    if let Some(servers) = take::<Vec<Properties>>(&mut config, "NameserverData") {
        let address = |mut server| take::<String>(&mut server, "address")?.parse().ok();
        return Ok(servers.into_iter().filter_map(address).collect());
    }
    let servers: Vec<Vec<u8>> = take(&mut config, "Nameservers").unwrap_or_default();
    let address = |bytes: Vec<u8>| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from);
    Ok(servers.into_iter().filter_map(address).collect())
}

async fn properties(bus: &Connection, object: &OwnedObjectPath, interface: &str) -> zbus::Result<Properties> {
    let reply = bus
        .call_method(Some(SERVICE), object, Some("org.freedesktop.DBus.Properties"), "GetAll", &interface)
        .await?;
    reply.body().deserialize()
}

/// The property, when it is there and of the expected type.
fn take<T: TryFrom<OwnedVariant>>(properties: &mut Properties, name: &str) -> Option<T> {
    T::try_from(properties.remove(name)?).ok()
}

/// NetworkManager's word for "no object" is the path `/`.
fn existing(object: OwnedObjectPath) -> Option<OwnedObjectPath> {
    (object.as_str() != "/").then_some(object)
}

/// `NMDeviceType`. Ethernet is left to the kernel's facts: phones over USB are Ethernet here.
fn kind(device_type: u32) -> Option<PathKind> {
    match device_type {
        2 => Some(PathKind::Wifi),
        5 => Some(PathKind::Tether),
        8 => Some(PathKind::Cellular),
        _ => None,
    }
}

/// `NMMetered`: told or guessed from what the network announced.
fn metered(value: u32) -> Option<bool> {
    match value {
        1 | 3 => Some(true),
        2 => Some(false),
        // NM guesses "no" (4) of everything that did not announce itself, cellular included.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use netlink_packet_route::link::LinkLayerType;
    use zbus::{fdo, interface};

    use super::*;

    fn object(path: &'static str) -> OwnedObjectPath {
        OwnedObjectPath::try_from(path).unwrap()
    }

    struct Manager;

    #[interface(name = "org.freedesktop.NetworkManager")]
    impl Manager {
        #[zbus(name = "GetDeviceByIpIface")]
        fn device_by_ip_interface(&self, name: &str) -> fdo::Result<OwnedObjectPath> {
            match name {
                "net0" | "other0" => Ok(object("/d")),
                _ => Err(fdo::Error::Failed("no such device".to_owned())),
            }
        }
    }

    struct Device;

    #[interface(name = "org.freedesktop.NetworkManager.Device")]
    impl Device {
        #[zbus(property)]
        fn device_type(&self) -> u32 {
            2
        }
        #[zbus(property)]
        fn metered(&self) -> u32 {
            3
        }
        #[zbus(property, name = "HwAddress")]
        fn hw_address(&self) -> String {
            "00:11:22:AA:BB:CC".to_owned()
        }
        #[zbus(property, name = "Ip4Config")]
        fn ip4_config(&self) -> OwnedObjectPath {
            object("/c4")
        }
        #[zbus(property, name = "Ip6Config")]
        fn ip6_config(&self) -> OwnedObjectPath {
            object("/c6")
        }
    }

    struct Wireless;

    #[interface(name = "org.freedesktop.NetworkManager.Device.Wireless")]
    impl Wireless {
        #[zbus(property)]
        fn active_access_point(&self) -> OwnedObjectPath {
            object("/ap")
        }
    }

    struct AccessPoint;

    #[interface(name = "org.freedesktop.NetworkManager.AccessPoint")]
    impl AccessPoint {
        #[zbus(property)]
        fn ssid(&self) -> Vec<u8> {
            b"Caf\xc3\xa9".to_vec()
        }
    }

    struct Ip4;

    #[interface(name = "org.freedesktop.NetworkManager.IP4Config")]
    impl Ip4 {
        #[zbus(property)]
        fn nameserver_data(&self) -> Vec<Properties> {
            let address = |text: &str| OwnedVariant::from(zbus::Str::from(text.to_owned()));
            vec![HashMap::from([("address".to_owned(), address("192.0.2.53"))])]
        }
    }

    struct Ip6;

    #[interface(name = "org.freedesktop.NetworkManager.IP6Config")]
    impl Ip6 {
        #[zbus(property)]
        fn nameservers(&self) -> Vec<Vec<u8>> {
            vec![std::net::Ipv6Addr::LOCALHOST.octets().to_vec(), vec![1, 2, 3]]
        }
    }

    fn link(name: &str, index: u32, mac: &[u8]) -> Link {
        Link {
            index,
            name: name.to_owned(),
            layer: LinkLayerType::Ether,
            hardware_address: mac.to_vec(),
            is_running: true,
            is_loopback: false,
            is_plumbing: false,
        }
    }

    /// NetworkManager's interfaces, as its reference manual has them, served over a socket pair.
    fn with_manager<T>(test: impl AsyncFnOnce(Connection) -> T) -> T {
        let (ours, theirs) = UnixStream::pair().unwrap();
        zbus::block_on(async {
            let server = connection::Builder::unix_stream(theirs)
                .server(zbus::Guid::generate())
                .p2p()
                .serve_at(ROOT, Manager)
                .serve_at("/d", Device)
                .serve_at("/d", Wireless)
                .serve_at("/ap", AccessPoint)
                .serve_at("/c4", Ip4)
                .serve_at("/c6", Ip6)
                .build();
            let client = connection::Builder::unix_stream(ours).p2p().method_timeout(ANSWER_TIME).build();
            // Both ends must be polled for the handshake between them.
            let (_server, client) = futures_util::future::join(server, client).await;
            test(client.unwrap()).await
        })
    }

    #[test]
    fn kind_metered_wifi_name_and_dns_servers_are_learnt() {
        let links = [link("net0", 7, &[0x00, 0x11, 0x22, 0xaa, 0xbb, 0xcc]), link("gone0", 8, &[])];
        let hints = with_manager(async |bus| query(&bus, &links).await).unwrap();
        let expected = Hints {
            kind: Some(PathKind::Wifi),
            metered: Some(true),
            wifi_name: Some("Café".to_owned()),
            dns_servers: vec!["192.0.2.53".parse().unwrap(), "::1".parse().unwrap()],
        };
        assert_eq!(hints, BTreeMap::from([(7, expected)]));
    }

    #[test]
    fn a_device_of_the_same_name_elsewhere_is_not_taken_for_ours() {
        let links = [link("other0", 7, &[0x02, 0, 0, 0, 0, 1])];
        let hints = with_manager(async |bus| query(&bus, &links).await).unwrap();
        assert_eq!(hints, BTreeMap::new());
    }
}
