# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_multiway_global_optspecs
    string join \n h/help V/version
end

function __fish_multiway_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_multiway_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_multiway_using_subcommand
    set -l cmd (__fish_multiway_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c multiway -n "__fish_multiway_needs_command" -s h -l help -d 'Print help'
complete -c multiway -n "__fish_multiway_needs_command" -s V -l version -d 'Print version'
complete -c multiway -n "__fish_multiway_needs_command" -f -a "get" -d 'Download over every network at once, without daemon and without root'
complete -c multiway -n "__fish_multiway_needs_command" -f -a "up" -d 'Start the daemon: proxies, and interception where the kernel lets it'
complete -c multiway -n "__fish_multiway_needs_command" -f -a "run" -d 'Run one program over every network at once'
complete -c multiway -n "__fish_multiway_needs_command" -f -a "status" -d 'Show the daemon\'s paths, flows and events'
complete -c multiway -n "__fish_multiway_needs_command" -f -a "paths" -d 'Show each network interface and what it lacks to be a path'
complete -c multiway -n "__fish_multiway_needs_command" -f -a "join" -d 'Join a relay, by which any connection survives the loss of a network'
complete -c multiway -n "__fish_multiway_needs_command" -f -a "relay" -d 'Run a relay for devices that join it'
complete -c multiway -n "__fish_multiway_needs_command" -f -a "demo" -d 'Show on emulated networks what happens when one fails; needs root, and the lab\'s multiway-repro beside this program'
complete -c multiway -n "__fish_multiway_needs_command" -f -a "completions" -d 'Write a completion script for a shell'
complete -c multiway -n "__fish_multiway_needs_command" -f -a "man" -d 'Write the manual pages'
complete -c multiway -n "__fish_multiway_needs_command" -f -a "reaper" -d 'Remove what a daemon left behind; started by the daemon itself'
complete -c multiway -n "__fish_multiway_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c multiway -n "__fish_multiway_using_subcommand get" -s o -l output -d 'Where to write, `-` for the standard output; by default the last part of the URL, in the current directory' -r -F
complete -c multiway -n "__fish_multiway_using_subcommand get" -s p -l path -d 'Use this network interface; may be given several times [default: all]' -r
complete -c multiway -n "__fish_multiway_using_subcommand get" -l preference -d 'How metered networks are used [default: thrifty]' -r -f -a "fast\t'Whatever ends soonest'
thrifty\t'Metered networks only for what the others cannot do within a second'"
complete -c multiway -n "__fish_multiway_using_subcommand get" -l checksum -d 'Fail unless the file has this digest' -r
complete -c multiway -n "__fish_multiway_using_subcommand get" -l cacert -d 'Trust the certificate authorities in this PEM file instead of the system\'s' -r -F
complete -c multiway -n "__fish_multiway_using_subcommand get" -s H -l header -d 'Send this header with every request' -r
complete -c multiway -n "__fish_multiway_using_subcommand get" -s c -l continue -d 'Go on from what an earlier attempt left'
complete -c multiway -n "__fish_multiway_using_subcommand get" -l json -d 'Print a summary as one line of JSON per URL'
complete -c multiway -n "__fish_multiway_using_subcommand get" -s q -l quiet -d 'Print nothing but errors'
complete -c multiway -n "__fish_multiway_using_subcommand get" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c multiway -n "__fish_multiway_using_subcommand up" -s c -l config -d 'Configuration file; see packaging/multiway.toml for every key' -r -F
complete -c multiway -n "__fish_multiway_using_subcommand up" -s l -l listen -d 'Where to offer HTTP proxy and SOCKS5 [default: 127.0.0.1:7070]' -r
complete -c multiway -n "__fish_multiway_using_subcommand up" -l control -d 'Control socket [default: /run/multiway/control.sock for root, else $XDG_RUNTIME_DIR/multiway.sock]' -r -F
complete -c multiway -n "__fish_multiway_using_subcommand up" -l intercept-user -d 'Intercept the connections of this user (name or number); may be given several times' -r
complete -c multiway -n "__fish_multiway_using_subcommand up" -l intercept-group -d 'Intercept the connections of this group (name or number); may be given several times' -r
complete -c multiway -n "__fish_multiway_using_subcommand up" -l intercept-cgroup -d 'Intercept the connections of this control group; may be given several times' -r
complete -c multiway -n "__fish_multiway_using_subcommand up" -s p -l path -d 'Use this network interface; may be given several times [default: all]' -r
complete -c multiway -n "__fish_multiway_using_subcommand up" -l preference -d 'How metered networks are used [default: thrifty]' -r -f -a "fast\t'Whatever ends soonest'
thrifty\t'Metered networks only for what the others cannot do within a second'"
complete -c multiway -n "__fish_multiway_using_subcommand up" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c multiway -n "__fish_multiway_using_subcommand run" -l control -d 'Control socket [default: /run/multiway/control.sock for root, else $XDG_RUNTIME_DIR/multiway.sock]' -r -F
complete -c multiway -n "__fish_multiway_using_subcommand run" -s h -l help -d 'Print help'
complete -c multiway -n "__fish_multiway_using_subcommand status" -l control -d 'Control socket [default: /run/multiway/control.sock for root, else $XDG_RUNTIME_DIR/multiway.sock]' -r -F
complete -c multiway -n "__fish_multiway_using_subcommand status" -l json -d 'Print JSON, as described by docs/api.json'
complete -c multiway -n "__fish_multiway_using_subcommand status" -s w -l watch -d 'Show it anew every second'
complete -c multiway -n "__fish_multiway_using_subcommand status" -s h -l help -d 'Print help'
complete -c multiway -n "__fish_multiway_using_subcommand paths" -l json -d 'Print JSON, as described by docs/api.json'
complete -c multiway -n "__fish_multiway_using_subcommand paths" -s h -l help -d 'Print help'
complete -c multiway -n "__fish_multiway_using_subcommand join" -l membership -d 'Where to keep it; the daemon has to look there [default: /var/lib/multiway/relay for root, else ~/.local/state/multiway/relay]' -r -F
complete -c multiway -n "__fish_multiway_using_subcommand join" -s h -l help -d 'Print help'
complete -c multiway -n "__fish_multiway_using_subcommand relay; and not __fish_seen_subcommand_from invite users revoke help" -s c -l config -d 'Configuration file; see packaging/relay.toml for every key' -r -F
complete -c multiway -n "__fish_multiway_using_subcommand relay; and not __fish_seen_subcommand_from invite users revoke help" -l state -d 'Directory of keys, users and usage [default: /var/lib/multiway-relay for root, else ~/.local/state/multiway-relay]' -r -F
complete -c multiway -n "__fish_multiway_using_subcommand relay; and not __fish_seen_subcommand_from invite users revoke help" -s l -l listen -d 'Where devices connect; may be given several times [default: [::]:443 and 0.0.0.0:443]' -r
complete -c multiway -n "__fish_multiway_using_subcommand relay; and not __fish_seen_subcommand_from invite users revoke help" -s h -l help -d 'Print help'
complete -c multiway -n "__fish_multiway_using_subcommand relay; and not __fish_seen_subcommand_from invite users revoke help" -f -a "invite" -d 'Let a device in: print a URL, and a QR code, for `multiway join`'
complete -c multiway -n "__fish_multiway_using_subcommand relay; and not __fish_seen_subcommand_from invite users revoke help" -f -a "users" -d 'List who was invited, and what they used this month'
complete -c multiway -n "__fish_multiway_using_subcommand relay; and not __fish_seen_subcommand_from invite users revoke help" -f -a "revoke" -d 'Shut a user out, at once'
complete -c multiway -n "__fish_multiway_using_subcommand relay; and not __fish_seen_subcommand_from invite users revoke help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from invite" -l name -d 'Who it is for; anything that tells users apart' -r
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from invite" -l expires -d 'For how long it is good, such as 30d, 12h or never' -r
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from invite" -l limit -d 'How much may be moved each month, both directions together, such as 50GB/month [default: any amount]' -r
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from invite" -l address -d 'Where devices reach the relay [default: address in the configuration file]' -r
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from invite" -s c -l config -d 'Configuration file; see packaging/relay.toml for every key' -r -F
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from invite" -l state -d 'Directory of keys, users and usage [default: /var/lib/multiway-relay for root, else ~/.local/state/multiway-relay]' -r -F
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from invite" -s q -l quiet -d 'Print the URL alone'
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from invite" -s h -l help -d 'Print help'
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from users" -s c -l config -d 'Configuration file; see packaging/relay.toml for every key' -r -F
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from users" -l state -d 'Directory of keys, users and usage [default: /var/lib/multiway-relay for root, else ~/.local/state/multiway-relay]' -r -F
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from users" -l json -d 'Print JSON'
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from users" -s h -l help -d 'Print help'
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from revoke" -s c -l config -d 'Configuration file; see packaging/relay.toml for every key' -r -F
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from revoke" -l state -d 'Directory of keys, users and usage [default: /var/lib/multiway-relay for root, else ~/.local/state/multiway-relay]' -r -F
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from revoke" -s h -l help -d 'Print help'
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from help" -f -a "invite" -d 'Let a device in: print a URL, and a QR code, for `multiway join`'
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from help" -f -a "users" -d 'List who was invited, and what they used this month'
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from help" -f -a "revoke" -d 'Shut a user out, at once'
complete -c multiway -n "__fish_multiway_using_subcommand relay; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c multiway -n "__fish_multiway_using_subcommand demo" -s h -l help -d 'Print help'
complete -c multiway -n "__fish_multiway_using_subcommand completions" -s h -l help -d 'Print help'
complete -c multiway -n "__fish_multiway_using_subcommand man" -s h -l help -d 'Print help'
complete -c multiway -n "__fish_multiway_using_subcommand reaper" -s h -l help -d 'Print help'
complete -c multiway -n "__fish_multiway_using_subcommand help; and not __fish_seen_subcommand_from get up run status paths join relay demo completions man reaper help" -f -a "get" -d 'Download over every network at once, without daemon and without root'
complete -c multiway -n "__fish_multiway_using_subcommand help; and not __fish_seen_subcommand_from get up run status paths join relay demo completions man reaper help" -f -a "up" -d 'Start the daemon: proxies, and interception where the kernel lets it'
complete -c multiway -n "__fish_multiway_using_subcommand help; and not __fish_seen_subcommand_from get up run status paths join relay demo completions man reaper help" -f -a "run" -d 'Run one program over every network at once'
complete -c multiway -n "__fish_multiway_using_subcommand help; and not __fish_seen_subcommand_from get up run status paths join relay demo completions man reaper help" -f -a "status" -d 'Show the daemon\'s paths, flows and events'
complete -c multiway -n "__fish_multiway_using_subcommand help; and not __fish_seen_subcommand_from get up run status paths join relay demo completions man reaper help" -f -a "paths" -d 'Show each network interface and what it lacks to be a path'
complete -c multiway -n "__fish_multiway_using_subcommand help; and not __fish_seen_subcommand_from get up run status paths join relay demo completions man reaper help" -f -a "join" -d 'Join a relay, by which any connection survives the loss of a network'
complete -c multiway -n "__fish_multiway_using_subcommand help; and not __fish_seen_subcommand_from get up run status paths join relay demo completions man reaper help" -f -a "relay" -d 'Run a relay for devices that join it'
complete -c multiway -n "__fish_multiway_using_subcommand help; and not __fish_seen_subcommand_from get up run status paths join relay demo completions man reaper help" -f -a "demo" -d 'Show on emulated networks what happens when one fails; needs root, and the lab\'s multiway-repro beside this program'
complete -c multiway -n "__fish_multiway_using_subcommand help; and not __fish_seen_subcommand_from get up run status paths join relay demo completions man reaper help" -f -a "completions" -d 'Write a completion script for a shell'
complete -c multiway -n "__fish_multiway_using_subcommand help; and not __fish_seen_subcommand_from get up run status paths join relay demo completions man reaper help" -f -a "man" -d 'Write the manual pages'
complete -c multiway -n "__fish_multiway_using_subcommand help; and not __fish_seen_subcommand_from get up run status paths join relay demo completions man reaper help" -f -a "reaper" -d 'Remove what a daemon left behind; started by the daemon itself'
complete -c multiway -n "__fish_multiway_using_subcommand help; and not __fish_seen_subcommand_from get up run status paths join relay demo completions man reaper help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c multiway -n "__fish_multiway_using_subcommand help; and __fish_seen_subcommand_from relay" -f -a "invite" -d 'Let a device in: print a URL, and a QR code, for `multiway join`'
complete -c multiway -n "__fish_multiway_using_subcommand help; and __fish_seen_subcommand_from relay" -f -a "users" -d 'List who was invited, and what they used this month'
complete -c multiway -n "__fish_multiway_using_subcommand help; and __fish_seen_subcommand_from relay" -f -a "revoke" -d 'Shut a user out, at once'
