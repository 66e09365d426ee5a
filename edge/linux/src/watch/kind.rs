//! Which sort of link an interface is.

use std::fs;
use std::path::Path;

use multiway_core::paths::PathKind;
use netlink_packet_route::link::LinkLayerType;

use super::tables::{Link, hardware_address};

/// Drivers of phones and the like that offer their network over USB.
const TETHER_DRIVERS: [&str; 3] = ["rndis_host", "cdc_ether", "ipheth"];

/// Drivers of cellular modems whose interfaces look like Ethernet.
const CELLULAR_DRIVERS: [&str; 6] =
    ["cdc_mbim", "qmi_wwan", "huawei_cdc_ncm", "sierra_net", "hso", "mhi_wwan_mbim"];

/// Driver that both phones and USB Ethernet adapters use.
const NCM_DRIVER: &str = "cdc_ncm";

/// Bit of a MAC address that no vendor assigned; phones make theirs up (IEEE 802, U/L bit).
const LOCALLY_ADMINISTERED: u8 = 0x02;

/// Interface name prefixes of systemd, the kernel and common drivers; longer ones first.
const PREFIXES: [(&str, PathKind); 12] = [
    ("wlan", PathKind::Wifi),
    ("wwan", PathKind::Cellular),
    ("rmnet", PathKind::Cellular),
    ("ccmni", PathKind::Cellular),
    ("bnep", PathKind::Tether),
    ("usb", PathKind::Tether),
    ("eth", PathKind::Ethernet),
    ("end", PathKind::Ethernet),
    ("wl", PathKind::Wifi),
    ("ww", PathKind::Cellular),
    ("en", PathKind::Ethernet),
    ("em", PathKind::Ethernet),
];

/// The kind of a link from what sysfs says of it, else its link layer, else its name.
pub(crate) fn of_link(link: &Link) -> PathKind {
    of_link_at(Path::new("/sys/class/net"), link)
}

/// True when traffic on links of the kind usually costs money.
pub(crate) fn is_metered_by_default(kind: PathKind) -> bool {
    matches!(kind, PathKind::Cellular | PathKind::Tether)
}

fn of_link_at(class_net: &Path, link: &Link) -> PathKind {
    from_sysfs(class_net, link)
        .or(match link.layer {
            LinkLayerType::Ieee80211 => Some(PathKind::Wifi),
            LinkLayerType::Rawip => Some(PathKind::Cellular),
            _ => None,
        })
        .or_else(|| from_name(&link.name))
        .unwrap_or(PathKind::Other)
}

fn from_sysfs(class_net: &Path, link: &Link) -> Option<PathKind> {
    let directory = class_net.join(&link.name);
    // A mounted sysfs shows the network namespace it was mounted in, which may not be ours.
    let index: u32 = fs::read_to_string(directory.join("ifindex")).ok()?.trim().parse().ok()?;
    let address = fs::read_to_string(directory.join("address")).ok()?;
    if index != link.index || address.trim() != hardware_address(&link.hardware_address) {
        return None;
    }
    if directory.join("wireless").exists() || directory.join("phy80211").exists() {
        return Some(PathKind::Wifi);
    }
    let uevent = fs::read_to_string(directory.join("uevent")).unwrap_or_default();
    match uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE=")) {
        Some("wlan") => return Some(PathKind::Wifi),
        Some("wwan") => return Some(PathKind::Cellular),
        Some("bluetooth") => return Some(PathKind::Tether),
        _ => {}
    }
    let driver = fs::read_link(directory.join("device/driver")).ok()?;
    let driver = driver.file_name()?.to_str()?;
    let made_up = link.hardware_address.first().is_some_and(|byte| byte & LOCALLY_ADMINISTERED != 0);
    if TETHER_DRIVERS.contains(&driver) || (driver == NCM_DRIVER && made_up) {
        Some(PathKind::Tether)
    } else if CELLULAR_DRIVERS.contains(&driver) {
        Some(PathKind::Cellular)
    } else if link.layer == LinkLayerType::Ether && directory.join("device").exists() {
        // Hardware that speaks Ethernet and is none of the above, whatever it was renamed to.
        Some(PathKind::Ethernet)
    } else {
        None
    }
}

fn from_name(name: &str) -> Option<PathKind> {
    PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|&(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn link(name: &str, mac: &[u8]) -> Link {
        Link {
            index: 3,
            name: name.to_owned(),
            layer: LinkLayerType::Ether,
            hardware_address: mac.to_vec(),
            is_running: true,
            is_loopback: false,
            is_plumbing: false,
        }
    }

    fn sysfs(name: &str, uevent: &str, driver: Option<&str>) -> tempfile::TempDir {
        let class_net = tempfile::tempdir().unwrap();
        let directory = class_net.path().join(name);
        fs::create_dir_all(directory.join("device")).unwrap();
        fs::write(directory.join("ifindex"), "3\n").unwrap();
        fs::write(directory.join("address"), "00:11:22:33:44:55\n").unwrap();
        fs::write(directory.join("uevent"), uevent).unwrap();
        if let Some(driver) = driver {
            symlink(format!("../../drivers/{driver}"), directory.join("device/driver")).unwrap();
        }
        class_net
    }

    const MAC: &[u8] = &[0x00, 0x11, 0x22, 0x33, 0x44, 0x55];

    #[test]
    fn sysfs_tells_wifi_cellular_and_tethers_whatever_their_names() {
        for (uevent, driver, kind) in [
            ("DEVTYPE=wlan\nINTERFACE=net0\n", None, PathKind::Wifi),
            ("DEVTYPE=wwan\n", Some("cdc_ether"), PathKind::Cellular),
            ("", Some("rndis_host"), PathKind::Tether),
            ("", Some("ipheth"), PathKind::Tether),
            ("", Some("qmi_wwan"), PathKind::Cellular),
            ("", Some("cdc_ncm"), PathKind::Ethernet),
            ("", Some("e1000e"), PathKind::Ethernet),
        ] {
            let class_net = sysfs("net0", uevent, driver);
            assert_eq!(of_link_at(class_net.path(), &link("net0", MAC)), kind, "{uevent:?} {driver:?}");
        }
    }

    #[test]
    fn sysfs_of_another_network_namespace_is_not_believed() {
        let class_net = sysfs("wlan0", "DEVTYPE=wwan\n", None);
        let stranger = link("wlan0", &[0x00, 0x11, 0x22, 0x33, 0x44, 0x66]);
        assert_eq!(of_link_at(class_net.path(), &stranger), PathKind::Wifi);
    }

    #[test]
    fn without_sysfs_the_name_decides() {
        let empty = tempfile::tempdir().unwrap();
        for (name, kind) in [
            ("wlan0", PathKind::Wifi),
            ("wlp3s0", PathKind::Wifi),
            ("wwan0", PathKind::Cellular),
            ("wwp0s20u4", PathKind::Cellular),
            ("enp1s0", PathKind::Ethernet),
            ("eth0", PathKind::Ethernet),
            ("usb0", PathKind::Tether),
            ("docker0", PathKind::Other),
        ] {
            assert_eq!(of_link_at(empty.path(), &link(name, MAC)), kind, "{name}");
        }
    }
}
