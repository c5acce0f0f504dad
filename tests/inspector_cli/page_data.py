"""The elements and data of a page that `telens plot --out x.html` writes."""

import html.parser
import json


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.in_script = False
        self.scripts = []
        self.text = ""  # outside of scripts
        self.feed(text)
        self.close()
        self.data = json.loads(self.scripts[0])

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.in_script = tag == "script"
        if self.in_script:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.in_script = False

    def handle_data(self, text):
        if self.in_script:
            self.scripts[-1] += text
        else:
            self.text += text


def charts_of(text):
    """{title: chart} of a page, in the order of the page."""
    return {chart["title"]: chart for chart in Page(text).data["charts"]}


def tick_labels(chart):
    return {label for _, label in chart["ticks"]}
