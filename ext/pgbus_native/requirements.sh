#!/bin/sh
# What a machine must have before the extension can be compiled. extconf.rb and bin/setup both ask here, so that they
# never disagree. It needs no Ruby, and runs the tools themselves instead of guessing from files.
#
#   sh requirements.sh COMPILER     prints a line for each thing that is missing: its name, a tab, a sentence.
#                                   COMPILER is the one that Ruby was compiled with.
#   sh requirements.sh --advice     prints how to install them
export LC_ALL=C

minimum_rust=1.85 # `rust-version` of the workspace

advice="Install what is missing, then try again:

  Debian, Ubuntu  apt-get install build-essential ruby-dev libclang-dev cargo
  Fedora          dnf install gcc make ruby-devel clang-devel cargo
  Alpine          apk add build-base ruby-dev clang-dev cargo
  macOS           xcode-select --install, and brew install rust

Where the system's Rust is too old (Debian before 13, for one), take it from https://rustup.rs.
Where libclang is in an unusual place, set LIBCLANG_PATH to its folder."

lack() { printf '%s\t%s\n' "$1" "$2"; }
found() { command -v "$1" >/dev/null 2>&1; }

# --- Rust -------------------------------------------------------------------------------------------------------------

# What is wrong with cargo or rustc; prints nothing if it will do. One of rustup without a toolchain is there and fails.
rust_fault() {
  found "$1" || { echo "$1 not found (PATH is $PATH)"; return; }
  output=$("$1" --version 2>&1) || { echo "$1 doesn't run: ${output%%
*}"; return; }
  version=${output#* } version=${version%% *}
  is_new_enough "$version" || echo "${1##*/} is $version"
}

is_new_enough() {
  major=${1%%.*} minor=${1#*.} minor=${minor%%.*}
  [ "$major" -gt "${minimum_rust%.*}" ] || { [ "$major" -eq "${minimum_rust%.*}" ] && [ "$minor" -ge "${minimum_rust#*.}" ]; }
} 2>/dev/null # What is no number is too old.

check_rust() {
  # The user had rb_sys bring a toolchain of its own.
  [ "${RB_SYS_FORCE_INSTALL_RUST_TOOLCHAIN:-false}" = false ] || return 0

  for tool in "${CARGO:-cargo}" "${RUSTC:-rustc}"; do
    fault=$(rust_fault "$tool")
    [ -z "$fault" ] || { lack rust "Rust $minimum_rust or newer: $fault"; return; }
  done
}

# --- a C compiler -----------------------------------------------------------------------------------------------------

links_a_program() {
  folder=$(mktemp -d 2>/dev/null) || return 1
  # Unquoted: the compiler of a Ruby may have options.
  # shellcheck disable=SC2086
  echo 'int main(void) { return 0; }' | $1 -x c -o "$folder/program" - >/dev/null 2>&1
  status=$?
  rm -rf "$folder"
  return $status
}

# Ruby's compiler links the extension. rustc links what runs while it compiles with `cc`.
check_compiler() {
  for compiler in "$1" cc; do
    if ! found "${compiler%% *}"; then
      lack compiler "A C compiler: ${compiler%% *} not found"
    elif ! links_a_program "$compiler"; then
      lack compiler "A C compiler: $compiler makes no program (are the C library's development files there?)"
    else
      continue
    fi
    return
  done
}

check_make() {
  make=${MAKE:-make}
  found "${make%% *}" || lack make "make: ${make%% *} not found"
}

# --- libclang ---------------------------------------------------------------------------------------------------------

# Can the loader open it? What clang-sys looks at: on Linux, an ELF file of this system's word size, as this shell is.
is_library() {
  [ -f "$1" ] && [ -r "$1" ] || return 1
  [ "$system" = Darwin ] || [ "$(elf_identity "$1")" = "$(elf_identity /bin/sh)" ]
}
elf_identity() { # The magic number and the word size are the first five bytes.
  IFS= read -r bytes <"$1"
  printf '%s' "${bytes%"${bytes#?????}"}"
}

# Is one of these files libclang, by a name that clang-sys takes? libclang-cpp is another library.
any_libclang() {
  for file; do
    case "$system ${file##*/}" in
      *-cpp.*) ;;
      "Darwin libclang.dylib" | "Linux libclang.so" | "Linux libclang-"*.so | "Linux libclang.so."* | "Linux libclang-"*.so.*)
        is_library "$file" && libclang=$file && return ;;
    esac
  done
  return 1
}

in_search_path() { # FOLDER:FOLDER...
  rest=$1:
  while [ -n "$rest" ]; do
    folder=${rest%%:*} rest=${rest#*:}
    [ -n "$folder" ] && any_libclang "$folder"/libclang* && return 0
  done
  return 1
}

# The folders of clang-sys 1.9 (build/common.rs), with which bindgen looks for libclang.
has_libclang() {
  if [ -n "${LIBCLANG_PATH+set}" ]; then
    any_libclang "$LIBCLANG_PATH" "$LIBCLANG_PATH"/libclang*
    return
  fi
  llvm=$("${LLVM_CONFIG_PATH:-llvm-config}" --prefix 2>/dev/null) &&
    any_libclang "$llvm"/bin/libclang* "$llvm"/lib/libclang* "$llvm"/lib64/libclang* && return
  in_search_path "${LD_LIBRARY_PATH:-}" || in_search_path "${LIBRARY_PATH:-}" && return
  if [ "$system" = Darwin ]; then
    xcode=$(xcode-select --print-path 2>/dev/null)
    any_libclang "$xcode"/Toolchains/XcodeDefault.xctoolchain/usr/lib/libclang* \
      /usr/local/opt/llvm*/lib/llvm*/lib/libclang* /usr/local/opt/llvm*/lib/libclang* \
      /Library/Developer/CommandLineTools/usr/lib/libclang* \
      /Applications/Xcode.app/Contents/Developer/Toolchains/XcodeDefault.xctoolchain/usr/lib/libclang*
  else
    any_libclang /usr/local/llvm*/lib*/libclang* /usr/local/lib*/*/*/libclang* /usr/local/lib*/*/libclang* \
      /usr/local/lib*/libclang* /usr/lib*/*/*/libclang* /usr/lib*/*/libclang* /usr/lib*/libclang*
  fi
}

# C's headers that every compiler has its own of (stdarg.h). libclang takes them from its resource folder, which is a
# package of its own here and there; or bindgen asks clang for its folders, where there is a clang.
has_clang_headers() {
  [ -z "${BINDGEN_EXTRA_CLANG_ARGS:-}" ] || return 0
  found "${CLANG_PATH:-clang}" && return
  folder=${libclang%/*}
  for header in "$folder"/clang/*/include/stdarg.h "$folder"/../lib*/clang/*/include/stdarg.h \
    /usr/lib*/clang/*/include/stdarg.h /usr/lib*/llvm*/lib*/clang/*/include/stdarg.h; do
    [ -f "$header" ] && return
  done
  return 1
}

check_libclang() {
  system=$(uname 2>/dev/null || echo Linux)
  if has_libclang; then
    has_clang_headers || lack libclang "libclang: $libclang is there, clang's own headers (stdarg.h) are not"
    return
  fi
  if [ -n "${LIBCLANG_PATH+set}" ]; then
    lack libclang "libclang: not in LIBCLANG_PATH, which is '$LIBCLANG_PATH'"
  else
    lack libclang "libclang: not found (LIBCLANG_PATH is not set)"
  fi
}

# ----------------------------------------------------------------------------------------------------------------------

case "$#:${1-}" in
  1:--advice) echo "$advice" ;;
  1:?*) check_rust; check_compiler "$1"; check_make; check_libclang ;;
  *) echo "requirements.sh: takes the name of Ruby's C compiler, or --advice" >&2; exit 2 ;;
esac
