# shellcheck shell=bash
# Debian's part of bin/setup: installs what `missing` names, and writes what a command says into the file `log`. Ruby >= 3.3
# comes from the next release where this one's is too old, beside this release's packages and behind them in priority.
# That upgrades some of them, so a person is asked.

next_suite=trixie
next_source=/etc/apt/sources.list.d/pgbus_native-$next_suite.list
next_pin=/etc/apt/preferences.d/pgbus_native-$next_suite
unused_next_suite=no # Its source was added, and nothing was taken from it yet.
as_root=()

apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0 "$@"; }
quietly() { "$@" >"$log" 2>&1 || { cat "$log" >&2; complain "failed: $*"; exit 1; }; }
candidate() { apt-cache policy "$1" 2>/dev/null | awk '/Candidate:/ { print $2 }' | sed 's/^[0-9]*://'; }
candidate_reaches() { dpkg --compare-versions "$(candidate "$1" | sed 's/^(none)$/0/')" ge "$2"; } # PACKAGE VERSION
knows_next_suite() { grep -q "n=$next_suite" <<<"$(apt-cache policy 2>/dev/null)"; }

install_missing() {
  local packages=() next_packages=() gems=() crates=() line item
  for line in "${missing[@]}"; do
    for item in ${line##*|}; do
      case "$item" in
        next:*) next_packages+=("${item#next:}") ;;
        gem:*) gems+=("${item#gem:}") ;;
        cargo:*) crates+=("${item#cargo:}") ;;
        *) packages+=("$item") ;;
      esac
    done
  done
  if [ ${#packages[@]} -gt 0 ] || [ ${#next_packages[@]} -gt 0 ]; then
    become_root "${packages[@]}" "${next_packages[@]}"
    quietly apt update
    install_packages
    install_next_packages
  fi
  if [ ${#gems[@]} -gt 0 ]; then
    say "installing gems for $(command -v ruby): ${gems[*]}"
    # By no `gem` in PATH, which may be another Ruby's or a version manager's shell script.
    quietly ruby -r rubygems/gem_runner -e 'Gem::GemRunner.new.run(ARGV)' -- install --no-document "${gems[@]}"
  fi
  if [ ${#crates[@]} -gt 0 ]; then
    say "installing ${crates[*]} (a few minutes)"
    quietly cargo install --quiet --locked "${crates[@]}"
  fi
}

become_root() { # PACKAGES...
  [ "$(id -u)" -ne 0 ] || return 0
  has sudo || { complain "needs root to install: $* (run it as root, or install sudo)"; exit 1; }
  as_root=(sudo)
}

install_packages() {
  [ ${#packages[@]} -gt 0 ] || return 0
  local rust
  rust=$(sed -nE 's/^minimum_rust=([0-9.]+).*/\1/p' ext/pgbus_native/requirements.sh)
  if [[ " ${packages[*]} " == *" rustc "* ]] && ! candidate_reaches rustc "$rust"; then
    explain_and_stop
  fi
  say "installing ${packages[*]}"
  [[ " ${packages[*]} " != *" postgresql "* ]] || want_no_cluster
  # Where this machine's libraries are the next release's already, only that release's packages fit them.
  apt install --no-install-recommends "${packages[@]}" >"$log" 2>&1 || install_from_next_suite "${packages[@]}"
}

# Debian starts a PostgreSQL cluster with the package; only its programs are wanted here.
want_no_cluster() {
  [ ! -e /etc/postgresql-common/createcluster.conf ] || return 0
  "${as_root[@]}" mkdir -p /etc/postgresql-common
  echo 'create_main_cluster = false' | "${as_root[@]}" tee /etc/postgresql-common/createcluster.conf >/dev/null
}

install_next_packages() {
  [ ${#next_packages[@]} -gt 0 ] || return 0
  candidate_reaches ruby 3.3 || knows_next_suite || add_next_suite
  # Also where Ruby is new enough because it is the next release's already: its libraries must be so too.
  if knows_next_suite; then
    install_from_next_suite "${next_packages[@]}"
  else
    say "installing ${next_packages[*]}"
    quietly apt install --no-install-recommends "${next_packages[@]}"
  fi
}

# The archive and the keyring that this machine trusts for its own release: "URL FILE", without a file where apt's own
# keys are meant.
debian_archive() {
  local site='' entry=''
  read -r site entry < <(apt-get indextargets --format '$(SITE) $(SOURCESENTRY) $(RELEASE) $(COMPONENT) $(CREATED_BY)' |
    awk '$5 == "Packages" && $4 == "main" && $3 !~ /security|updates|backports/ { print $1, $2; exit }') || true
  [ -n "$site" ] || return
  echo "$site" "$(sed -nE 's/^Signed-By: *([^ ]+).*/\1/p; s/.*signed-by=([^] ]+).*/\1/p' "${entry%:*}" | head -1)"
}

add_next_suite() {
  local site='' keyring=''
  read -r site keyring < <(debian_archive) || true
  [ -n "$site" ] || { complain "no Debian archive found in this machine's apt sources"; exit 1; }
  say "adding Debian $next_suite (for Ruby >= 3.3) with priority 100: $next_source"
  unused_next_suite=yes
  echo "deb ${keyring:+[signed-by=$keyring] }$site $next_suite main" | "${as_root[@]}" tee "$next_source" >/dev/null
  printf 'Package: *\nPin: release n=%s\nPin-Priority: 100\n' "$next_suite" | "${as_root[@]}" tee "$next_pin" >/dev/null
  apt update >"$log" 2>&1 || {
    cat "$log" >&2
    complain "Debian $next_suite can't be reached; its source is removed again"
    exit 1
  }
}

# However bin/setup ends, by Ctrl-C at its question too.
clean_up() {
  rm -f "$log"
  [ "$unused_next_suite" = yes ] || return 0
  "${as_root[@]}" rm -f "$next_source" "$next_pin"
  apt update >/dev/null 2>&1 || true
}

install_from_next_suite() { # PACKAGES...
  local from_next=(install --no-install-recommends -t "$next_suite" "$@") plan upgraded removed
  plan=$(apt -s "${from_next[@]}" 2>"$log") || { cat "$log" >&2; complain "can't install: $*"; exit 1; }
  upgraded=$(sed -nE 's/^Inst ([^ ]+) \[([^]]+)\] \(([^ ]+) .*/    \1 \2 -> \3/p' <<<"$plan")
  removed=$(sed -nE 's/^Remv ([^ ]+) .*/    \1/p' <<<"$plan")
  if [ -n "$upgraded$removed" ]; then
    say "installing $* from Debian $next_suite"
    [ -z "$upgraded" ] || printf '  upgrades %d packages of this system to that release:\n%s\n' "$(wc -l <<<"$upgraded")" "$upgraded"
    [ -z "$removed" ] || printf '  removes:\n%s\n' "$removed"
    [[ "$upgraded" != *" base-files "* ]] || echo "  /etc/os-release will name that release afterwards."
    consent || { complain "nothing was installed from Debian $next_suite"; exit 1; }
  else
    say "installing $*"
  fi
  unused_next_suite=no
  quietly apt "${from_next[@]}"
}

# Asks where a person sits at a terminal of a system that is kept. A container isn't.
consent() {
  [ "$assume_yes" = no ] && [ -t 0 ] && [ -t 1 ] && ! in_a_container || return 0
  local answer=''
  read -r -p "bin/setup: go on? [y/N] " answer || true
  [[ "$answer" =~ ^[Yy] ]]
}

in_a_container() {
  [ -e /.dockerenv ] || [ -e /run/.containerenv ] || [ -n "${container:-}" ] ||
    { has systemd-detect-virt && systemd-detect-virt --container --quiet; }
}
