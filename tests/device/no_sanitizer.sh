#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
# Stands in for compute-sanitizer where there is no GPU: runs the program behind its three options.
shift 6
exec "$@"
