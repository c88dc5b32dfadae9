"""A release described in the forms that other people read: Croissant, a label, a data sheet, a registry's entry.

Each is made from the certificate and from the publisher's own words (release/about.py), and from nothing else.
"""
