#!/usr/bin/env bash
# Prints the home of a Java that Spark 4.3 runs on: 17 or 21, with the module jdk.incubator.vector.
#
#   JAVA_HOME="$(scripts/java.sh)"
#
# Looks at JAVA_HOME, then /usr/lib/jvm, then PATH. When there is none: installs Debian's package if we are root,
# otherwise says the one command to run and fails. All messages go to stderr.
set -euo pipefail

say() { printf 'java.sh: %s\n' "$*" >&2; }

# The major version of the Java in a home, or nothing.
major() {
    "$1/bin/java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1
}

fits() {
    local home="$1" version
    [ -x "$home/bin/java" ] || return 1
    version="$(major "$home")"
    [ "$version" = 17 ] || [ "$version" = 21 ] || return 1
    case "$("$home/bin/java" --list-modules 2>/dev/null)" in
        *jdk.incubator.vector*) ;;
        *) return 1 ;;
    esac
}

find_java() {
    local home java
    if [ -n "${JAVA_HOME:-}" ]; then
        if fits "$JAVA_HOME"; then
            printf '%s\n' "$JAVA_HOME"
            return 0
        fi
        say "JAVA_HOME=$JAVA_HOME is not a Java 17 or 21 that Spark can use; looking elsewhere"
    fi
    # 17 before 21, whatever the directories are called
    for home in /usr/lib/jvm/*17* /usr/lib/jvm/*21* /usr/lib/jvm/*; do
        if fits "$home"; then
            readlink -f "$home"
            return 0
        fi
    done
    if java="$(command -v java)"; then
        # bin/java may be a launcher script of a version manager: ask Java itself where it lives
        home="$("$java" -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java\.home = //p')"
        if [ -n "$home" ] && fits "$home"; then
            printf '%s\n' "$home"
            return 0
        fi
    fi
    return 1
}

find_java && exit 0

if ! command -v apt-get >/dev/null; then
    say "Spark needs Java 17 or 21. Install one (a JRE is enough) and set JAVA_HOME to it."
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    say "Spark needs Java 17 or 21. Run this one command, then try again:"
    say "    sudo sh -c 'apt-get update && (apt-get install -y openjdk-17-jre-headless || apt-get install -y openjdk-21-jre-headless)'"
    exit 1
fi

export DEBIAN_FRONTEND=noninteractive
apt=(apt-get -q -o DPkg::Lock::Timeout=300)
say "no Java 17 or 21 found: installing Debian's package"
"${apt[@]}" update >&2
for version in 17 21; do
    # headless JREs before Debian 13 fail to configure where the man page directories were stripped
    mkdir -p /usr/share/man/man1
    if "${apt[@]}" install -y --no-install-recommends "openjdk-$version-jre-headless" >&2; then
        find_java && exit 0
    fi
done
say "could not install openjdk-17-jre-headless or openjdk-21-jre-headless; install Java 17 or 21 and set JAVA_HOME"
exit 1
